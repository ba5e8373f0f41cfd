//! The log lines about masquerade: which inside host had which port outside, from when to when.

use std::fmt::Write;

use crate::forward::{
    messages::{Mapped, Means},
    translate::protocol_name,
};

/// One line about a mapping or a block of ports.
pub fn line(mapped: &Mapped) -> String {
    let Mapped { begins, inside, outside, first, last, means, unlogged, .. } = *mapped;
    let mut text = match means {
        Means::Block => {
            let what = if begins { "given to" } else { "back from" };
            format!("masquerade: {outside}:{first}-{last} {what} {inside}")
        }
        Means::Mapping { protocol, port } => {
            let what = if begins { "mapped to" } else { "no longer mapped to" };
            let protocol = protocol_name(protocol);
            format!("masquerade: {protocol} {inside}:{port} {what} {outside}:{first}")
        }
    };
    // A `String` takes everything.
    let _ = match jiff::Timestamp::try_from(mapped.at) {
        Ok(at) => write!(text, " at {at:.3}"),
        Err(_) => Ok(()),
    };
    if unlogged > 0 {
        let _ = write!(text, " ({unlogged} before it not logged)");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_line_says_who_had_what_and_when() {
        let mut mapped = Mapped {
            begins: true,
            inside: [10, 0, 0, 7].into(),
            outside: [203, 0, 113, 2].into(),
            first: 5120,
            last: 5183,
            means: Means::Block,
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_790_000_000_250),
            unlogged: 0,
        };
        assert_eq!(
            line(&mapped),
            "masquerade: 203.0.113.2:5120-5183 given to 10.0.0.7 at 2026-09-21T14:13:20.250Z"
        );
        mapped.begins = false;
        assert!(line(&mapped).starts_with("masquerade: 203.0.113.2:5120-5183 back from 10.0.0.7 at "));
        (mapped.means, mapped.first, mapped.unlogged) =
            (Means::Mapping { protocol: 17, port: 4000 }, 5121, 9);
        assert_eq!(
            line(&mapped),
            "masquerade: udp 10.0.0.7:4000 no longer mapped to 203.0.113.2:5121 at 2026-09-21T14:13:20.250Z (9 before it not logged)"
        );
    }
}
