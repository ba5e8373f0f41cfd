//! Linux: a table of nftables', with one chain that drops at the beginning of forwarding.

use super::{BarrierError, run};

pub(super) const COMMAND: &str = "nft";

/// Makes the table, in place of one that is there: `nft -f` is one transaction.
pub(super) fn raise(name: &str, interfaces: &[String]) -> Result<(), BarrierError> {
    let mut all = interfaces.to_vec();
    // The kernel's own devices for the ports' VLANs may be called anything.
    if let Ok(known) = std::fs::read_to_string("/proc/net/vlan/config") {
        all.extend(vlan_devices(&known, interfaces));
    }
    run(COMMAND, &["-f", "-"], &rules(name, &all))
}

/// The devices in the kernel's list of VLAN devices (`name | number | parent`) that stand for VLANs
/// which `interfaces` has as `parent.number`, where they are called something else.
fn vlan_devices(known: &str, interfaces: &[String]) -> Vec<String> {
    let device = |line: &str| {
        let mut words = line.split('|').map(str::trim);
        let (name, number, parent) = (words.next()?, words.next()?, words.next()?);
        let is_ours = |i: &String| *i == format!("{parent}.{number}") || *i == format!("{parent}.s{number}");
        let ours = interfaces.iter().any(is_ours);
        let fits = !name.contains(['"', '\\']) && interfaces.iter().all(|i| i != name);
        (ours && fits).then(|| name.to_owned())
    };
    known.lines().filter_map(device).collect()
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
    fn a_vlan_device_of_any_name_is_the_ports() {
        let known = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                     guests         | 100  | eth0\neth0.200       | 200  | eth0\nother          | 300  | eth0\n";
        let interfaces = ["eth0", "eth0.100", "eth0.200"].map(String::from);
        assert_eq!(vlan_devices(known, &interfaces), ["guests"]);
    }

    #[test]
    fn the_table_drops_into_and_out_of_each_port() {
        let text = rules("sweepd", &["eth0".into(), "eth1".into()]);
        assert!(text.contains("iifname { \"eth0\", \"eth1\" } counter drop"), "{text}");
        assert!(text.contains("oifname { \"eth0\", \"eth1\" } counter drop"), "{text}");
        assert!(!rules("sweepd", &[]).contains("drop\n        "));
    }
}
