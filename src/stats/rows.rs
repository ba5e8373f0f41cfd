//! The rows of `sweepd stat`: for people, or for programs.

use std::time::Duration;

use serde_json::json;

use super::{
    netstat::{Netstat, NetstatOptions},
    read::PortTotals,
};

/// How rows look.
#[derive(Clone, Debug)]
pub enum Format {
    /// As FreeBSD's netstat prints them.
    Netstat(NetstatOptions),
    /// One JSON object a row, without headers.
    Json,
}

/// Makes the lines, each with its end.
#[derive(Debug)]
pub(super) enum Rows {
    Netstat(Netstat),
    Json { port: Option<String> },
}

impl Rows {
    /// In this format, of this port, or of all together.
    pub fn new(format: &Format, port: Option<&str>) -> Self {
        match format {
            Format::Netstat(options) => Self::Netstat(Netstat::new(options.clone(), port)),
            Format::Json => Self::Json { port: port.map(str::to_owned) },
        }
    }

    /// What comes before the first row.
    pub fn header(&self) -> String {
        match self {
            Self::Netstat(view) => view.header(),
            Self::Json { .. } => String::new(),
        }
    }

    /// What happened between two moments, so far apart.
    pub fn row(&mut self, before: &PortTotals, after: &PortTotals, interval: Duration) -> String {
        match self {
            Self::Netstat(view) => view.row(before, after),
            Self::Json { port } => json_row(port.as_deref(), before, after, interval),
        }
    }
}

/// The keys are those of `show ports --json`: packets that workers took are `rx_packets`, those
/// lost before are `rx_dropped` and not among them.
fn json_row(port: Option<&str>, before: &PortTotals, after: &PortTotals, interval: Duration) -> String {
    // A counter that went back began anew: nothing is known of this interval.
    let passed = |of: fn(&PortTotals) -> u64| of(after).saturating_sub(of(before));
    let row = json!({
        "time": format!("{:.3}", jiff::Timestamp::now()),
        "seconds": (interval.as_secs_f64() * 1e6).round() / 1e6,
        "port": port,
        "rx_packets": passed(|t| t.rx_packets),
        "rx_bytes": passed(|t| t.rx_bytes),
        "rx_errors": passed(|t| t.rx_errors),
        "rx_dropped": passed(|t| t.rx_dropped),
        "tx_packets": passed(|t| t.tx_packets),
        "tx_bytes": passed(|t| t.tx_bytes),
        "tx_errors": passed(|t| t.tx_errors),
        "tx_dropped": passed(|t| t.tx_dropped),
    });
    format!("{row}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_json_row_is_one_line_and_one_object_with_differences() {
        let mut rows = Rows::new(&Format::Json, Some("wan"));
        assert_eq!(rows.header(), "");
        let before = PortTotals { rx_packets: 5, tx_bytes: 9, ..PortTotals::default() };
        let after = PortTotals { rx_packets: 12, tx_dropped: 3, ..PortTotals::default() };
        let text = rows.row(&before, &after, Duration::from_millis(1500));
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
        let row: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&row["port"], &row["seconds"]), (&json!("wan"), &json!(1.5)));
        assert_eq!(
            (&row["rx_packets"], &row["tx_dropped"], &row["tx_bytes"]),
            (&json!(7), &json!(3), &json!(0))
        );
        assert!(row["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{text}");
        let mut all = Rows::new(&Format::Json, None);
        let row: Value = serde_json::from_str(&all.row(&before, &after, Duration::ZERO)).unwrap();
        assert_eq!(row["port"], Value::Null);
    }
}
