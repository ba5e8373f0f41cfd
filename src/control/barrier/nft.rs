//! Linux: a table of nftables', with one chain that drops at the beginning of forwarding.

use super::{BarrierError, run};

pub(super) const COMMAND: &str = "nft";

/// Makes the table, in place of one that is there: `nft -f` is one transaction.
pub(super) fn raise(name: &str, interfaces: &[String]) -> Result<(), BarrierError> {
    run(COMMAND, &["-f", "-"], &rules(name, interfaces))
}

pub(super) fn lower(name: &str) -> Result<(), BarrierError> {
    // Adding what is there already is no error, and deleting what is not there is one.
    run(COMMAND, &["-f", "-"], &format!("add table inet {name}\ndelete table inet {name}\n"))
}

pub(super) fn by_hand(name: &str) -> String {
    format!("nft delete table inet {name}")
}

fn rules(name: &str, interfaces: &[String]) -> String {
    let ports: Vec<_> = interfaces.iter().map(|interface| format!("\"{interface}\"")).collect();
    let drops = if ports.is_empty() {
        String::new()
    } else {
        let ports = ports.join(", ");
        format!("        iifname {{ {ports} }} counter drop\n        oifname {{ {ports} }} counter drop\n")
    };
    // Before connection tracking and everybody else's chains.
    format!(
        "add table inet {name}\n\
         delete table inet {name}\n\
         table inet {name} {{\n\
         \u{20}   comment \"sweepd forwards between these ports; on_exit = drop\"\n\
         \u{20}   chain forward {{\n\
         \u{20}       type filter hook forward priority -300; policy accept;\n\
         {drops}    }}\n\
         }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_drops_into_and_out_of_each_port() {
        let text = rules("sweepd", &["eth0".into(), "eth1".into()]);
        assert!(text.contains("iifname { \"eth0\", \"eth1\" } counter drop"), "{text}");
        assert!(text.contains("oifname { \"eth0\", \"eth1\" } counter drop"), "{text}");
        assert!(!rules("sweepd", &[]).contains("drop\n        "));
    }
}
