//! What the log says at start about the host's own settings, which are never changed.

/// Says what is lost while the kernel itself does not forward.
#[cfg(target_os = "linux")]
pub fn log_forwarding() {
    let is_off = |path: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0");
    for (family, path) in
        [("IPv4", "/proc/sys/net/ipv4/ip_forward"), ("IPv6", "/proc/sys/net/ipv6/conf/all/forwarding")]
    {
        if is_off(path) {
            let flag =
                if family == "IPv6" { ", and neighbour advertisements lack the router flag" } else { "" };
            log::warn!(
                "the kernel's own {family} forwarding is off: packets for devices that are no ports are \
                 lost, the kernel does not take over when this program ends{flag} ({path} is 0)"
            );
        }
    }
}

/// Says what is lost while the kernel itself does not forward.
#[cfg(not(target_os = "linux"))]
pub fn log_forwarding() {}
