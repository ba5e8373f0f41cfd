//! FreeBSD: a pf anchor. pf has to be on, and its rules have to name the anchor: `anchor "sweepd"`.

use super::{BarrierError, run};

pub(super) const COMMAND: &str = "pfctl";

/// Loads the anchor's rules, in place of those that are there.
pub(super) fn raise(name: &str, interfaces: &[String]) -> Result<(), BarrierError> {
    run(
        "sh",
        &[
            "-c",
            "pfctl -s info 2>/dev/null | grep -q 'Status: Enabled' || { echo 'pf is not enabled: set pf_enable=YES, and have /etc/pf.conf say anchor \"sweepd*\"' >&2; exit 1; }; pfctl -s Anchors 2>/dev/null | grep -q sweepd || pfctl -s rules 2>/dev/null | grep -q 'anchor \"sweepd' || { echo 'its rules do not name the anchor: add to /etc/pf.conf: anchor \"sweepd*\"' >&2; exit 1; }",
        ],
        "",
    )?;
    run(COMMAND, &["-q", "-a", name, "-f", "-"], &rules(interfaces))
}

pub(super) fn lower(name: &str) -> Result<(), BarrierError> {
    run(COMMAND, &["-q", "-a", name, "-F", "rules"], "")
}

pub(super) fn by_hand(name: &str) -> String {
    format!("pfctl -a {name} -F rules")
}

/// pf has no hook for forwarding alone. What comes in is marked, and what goes out with a mark has
/// been forwarded: packets of the host's own have none.
fn rules(interfaces: &[String]) -> String {
    if interfaces.is_empty() {
        return String::new();
    }
    let ports = interfaces.join(" ");
    format!(
        "match in all tag sweepd_in\n\
         match in on {{ {ports} }} tag sweepd_port\n\
         block drop out quick all tagged sweepd_port\n\
         block drop out quick on {{ {ports} }} tagged sweepd_in\n"
    )
}
