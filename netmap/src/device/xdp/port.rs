//! Opening and closing AF_XDP ports.

use std::{
    collections::{HashMap, HashSet},
    fmt::Display,
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    Hook,
    bpf::{self, AttachMode},
    counters::LinkCounters,
    netif::{Netif, Offloads, Queues},
    program::{Owner, Program},
    queue::{Refused, XdpRx, XdpTx},
    socket::{self, Socket, Umem},
};
use crate::{
    arena::{Arena, BUF_SIZE},
    device::{ForwardedPort, Host, OpenError, OpenOptions, Port, PortControl, PortInfo, Sharing, Vlan},
    queue::{Losses, RxQueue, TxQueue},
    ring::{Direction, Kring, RxRing, TxRing},
};

/// Slots per ring when nobody says otherwise.
const DEFAULT_SLOTS: u32 = 2048;
/// Most slots per ring: 32 MiB of buffers.
const MAX_SLOTS: u32 = 1 << 14;
/// The kernel leaves so many bytes of each buffer free before the packet.
const HEADROOM: u32 = 256;
/// Longest frame that can be received, in bytes.
const MAX_FRAME: u32 = BUF_SIZE - HEADROOM;
/// Some drivers take the link down for a while when a program or a socket comes.
const CARRIER_WAIT: Duration = Duration::from_secs(6);
/// An Ethernet header and one VLAN tag.
const LINK_HEADER: u32 = 14 + 4;

/// An interface with the program attached, before its sockets.
struct Prepared {
    device: String,
    interface: String,
    netif: Netif,
    mac: [u8; 6],
    queues: Queues,
    slots: u32,
    mode: AttachMode,
    zero_copy: bool,
    program: Program,
    attachment: Attachment,
    counters: LinkCounters,
    /// Until when to wait for the carrier, if there was one before.
    carrier_until: Option<Instant>,
}

/// What closing a port undoes: the program's attachment, then the offloads.
struct Attachment {
    link: OwnedFd,
    netif: Netif,
    offloads: Offloads,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Err(e) = bpf::detach(self.link.as_fd()) {
            log::debug!("program not detached, closing will do: {e}");
        }
        if let Err(e) = self.netif.restore(&self.offloads) {
            // An interface that is gone needs none.
            let level =
                if e.raw_os_error() == Some(libc::ENODEV) { log::Level::Debug } else { log::Level::Warn };
            log::log!(level, "offloads of interface {} stay off: {e}", self.netif.index());
        }
    }
}

pub fn open_all(requests: &[(String, OpenOptions)]) -> Result<Vec<Port>, OpenError> {
    let mut names = HashSet::new();
    let mut prepared = Vec::new();
    for (interface, options) in requests {
        if !names.insert(interface) {
            return Err(OpenError::new(
                format!("xdp:{interface}"),
                "named twice; an interface can be one port only",
            ));
        }
        prepared.push(prepare(interface, options)?);
    }
    let local = host_addresses();
    let mut ports: Vec<Option<Port>> = prepared.iter().map(|_| None).collect();
    let (zero_copy, copy): (Vec<_>, Vec<_>) =
        prepared.into_iter().enumerate().partition(|(_, p)| p.zero_copy);
    for group in [zero_copy, copy] {
        for (at, port) in open_group(group, &local)? {
            ports[at] = Some(port);
        }
    }
    Ok(ports.into_iter().flatten().collect())
}

/// Looks at the interface, loads the program and attaches it.
fn prepare(interface: &str, options: &OpenOptions) -> Result<Prepared, OpenError> {
    let device = format!("xdp:{interface}");
    let fail = |reason: &dyn Display| OpenError::new(&device, reason);
    let trouble = |what: &str, e: io::Error| fail(&explain(interface, what, &e));
    let netif = Netif::find(interface).map_err(|e| trouble("looking for it", e))?;
    let mac = netif.mac().map_err(|e| trouble("asking for its MAC address", e))?;
    let mac = mac.ok_or_else(|| fail(&"not an Ethernet interface; AF_XDP ports must be"))?;
    if !netif.is_up().map_err(|e| trouble("asking whether it is up", e))? {
        return Err(fail(&format_args!("the interface is down; `ip link set {} up`", interface)));
    }
    let mtu = netif.mtu().map_err(|e| trouble("asking for its MTU", e))?;
    if mtu > MAX_FRAME - LINK_HEADER {
        return Err(fail(&format_args!(
            "MTU {mtu} does not fit a buffer; `ip link set {} mtu {}` or less",
            interface,
            MAX_FRAME - LINK_HEADER
        )));
    }
    let wait = options.carrier_wait.unwrap_or(CARRIER_WAIT);
    let carrier_until = netif.is_running().unwrap_or(false).then(|| Instant::now() + wait);
    let queues = netif.queues();
    if let Some(n) = options.rings.filter(|n| *n != queues.rx) {
        return Err(fail(&format_args!(
            "{n} rings asked for, but packets arrive on {} queues; leave `rings` out, or `ethtool -L {} combined {n}`",
            queues.rx, interface
        )));
    }
    let vlans: Vec<Vlan> = options.vlans.iter().map(|&id| Vlan { id, host: true, stacked: false }).collect();
    let slots = options.slots.unwrap_or(DEFAULT_SLOTS).clamp(64, MAX_SLOTS).next_power_of_two();
    let program = Program::load(mac, &vlans, queues.rx).map_err(|e| trouble("loading the XDP program", e))?;
    let (link, mode) =
        attach(&program, netif.index()).map_err(|e| trouble("attaching the XDP program", e))?;
    let mut attachment = Attachment {
        link,
        netif: Netif::find(interface).map_err(|e| trouble("looking for it", e))?,
        offloads: Offloads::default(),
    };
    match netif.offloads_off(mode == AttachMode::Generic) {
        Ok(offloads) => attachment.offloads = offloads,
        Err(e) if mode == AttachMode::Generic => {
            return Err(fail(&format_args!(
                "GRO and LRO cannot be switched off ({e}); `ethtool -K {} gro off lro off`",
                interface
            )));
        }
        Err(e) if !vlans.is_empty() => {
            return Err(fail(&format_args!(
                "the device takes VLAN tags off by itself, and that cannot be switched off ({e}); \
                 `ethtool -K {interface} rxvlan off`, or leave out `vlans`"
            )));
        }
        Err(e) => log::warn!("{device}: VLAN tags may be hidden, rx-vlan-hw-parse stays on: {e}"),
    }
    let counters = LinkCounters::new(netif.index()).map_err(|e| trouble("reading its counters", e))?;
    let zero_copy = mode == AttachMode::Native && socket::can_zero_copy(netif.index(), 0);
    let interface = interface.to_owned();
    Ok(Prepared {
        device,
        interface,
        netif,
        mac,
        queues,
        slots,
        mode,
        zero_copy,
        program,
        attachment,
        counters,
        carrier_until,
    })
}

/// In the driver if it can, else behind it.
fn attach(program: &Program, ifindex: u32) -> io::Result<(OwnedFd, AttachMode)> {
    match program.attach(ifindex, AttachMode::Native) {
        Ok(link) => Ok((link, AttachMode::Native)),
        Err(e)
            if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EBUSY | libc::EEXIST | libc::ENODEV)) =>
        {
            Err(e)
        }
        Err(native) => match program.attach(ifindex, AttachMode::Generic) {
            Ok(link) => {
                log::info!("no XDP in the driver of interface {ifindex} ({native}); generic mode, slower");
                Ok((link, AttachMode::Generic))
            }
            Err(generic) => Err(generic),
        },
    }
}

/// An error of the system, in words that say what to do.
fn explain(interface: &str, doing: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => {
            format!("no such interface; `ip link` lists them ({doing}: {error})")
        }
        Some(libc::EPERM | libc::EACCES) => format!(
            "not permitted ({doing}); run as root or give CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK"
        ),
        Some(libc::EBUSY | libc::EEXIST) if doing.contains("program") => format!(
            "another XDP program is attached; end its owner, or `ip link set {interface} xdp off` ({error})"
        ),
        Some(libc::EBUSY) => {
            format!("a queue is in use by another AF_XDP socket; end its owner ({doing}: {error})")
        }
        Some(libc::EAFNOSUPPORT) => "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".into(),
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            format!("not enough memory ({doing}); fewer `slots`, a higher `ulimit -l`, or CAP_IPC_LOCK")
        }
        Some(libc::ENETDOWN) => {
            format!("the interface is down; `ip link set {interface} up` ({doing}: {error})")
        }
        _ => format!("{doing}: {error}"),
    }
}

/// The addresses of all interfaces, broadcast addresses included: what is the host's until
/// somebody who knows better says so.
fn host_addresses() -> HashSet<IpAddr> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return HashSet::new() };
    let ip = |a: &nix::sys::socket::SockaddrStorage| -> Option<IpAddr> {
        let v4 = a.as_sockaddr_in().map(|a| a.ip().into());
        v4.or_else(|| a.as_sockaddr_in6().map(|a| a.ip().into()))
    };
    all.flat_map(|a| [a.address.as_ref().and_then(ip), a.broadcast.as_ref().and_then(ip)]).flatten().collect()
}

/// Opens ports that are driven alike in one arena; if a driver refuses to share, in one each.
fn open_group(
    group: Vec<(usize, Prepared)>,
    local: &HashSet<IpAddr>,
) -> Result<Vec<(usize, Port)>, OpenError> {
    let shared = {
        let ports: Vec<&Prepared> = group.iter().map(|(_, p)| p).collect();
        sockets_in_one_arena(&ports)
    };
    match shared {
        Ok((mut arena, sockets)) => group
            .into_iter()
            .zip(sockets)
            .map(|((at, p), sockets)| Ok((at, finish(p, sockets, &mut arena, local)?)))
            .collect(),
        Err((_, e))
            if group.len() > 1 && matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) =>
        {
            log::info!("the ports cannot share their memory ({e}); packets between them are copied");
            let mut ports = Vec::new();
            for port in group {
                ports.extend(open_group(vec![port], local)?);
            }
            Ok(ports)
        }
        Err((at, e)) => {
            let p = &group[at].1;
            Err(OpenError::new(&p.device, explain(&p.interface, "binding an AF_XDP socket", &e)))
        }
    }
}

/// Binds a socket to each queue of all ports; gives which port failed.
type Sockets = (Arena, Vec<Vec<Socket>>);

fn sockets_in_one_arena(ports: &[&Prepared]) -> Result<Sockets, (usize, io::Error)> {
    let rings: u32 = ports.iter().map(|p| 2 * p.queues.rx).sum();
    let slots: u32 = ports.iter().map(|p| 2 * p.queues.rx * p.slots).sum();
    let arena = Arena::new(rings as usize, slots, 0).map_err(|e| (0, e))?;
    let mut all: Vec<Vec<Socket>> = Vec::new();
    for (at, p) in ports.iter().enumerate() {
        let mut of_port = Vec::new();
        for queue in 0..p.queues.rx {
            let first = all.first().and_then(|s| s.first()).or(of_port.first());
            let umem = match first {
                None => Umem::Register(&arena),
                Some(first) => Umem::Share(first.fd.as_fd()),
            };
            let socket = Socket::open(umem, p.netif.index(), queue, p.slots, p.zero_copy);
            of_port.push(socket.map_err(|e| (at, e))?);
        }
        all.push(of_port);
    }
    Ok((arena, all))
}

/// Puts rings before the sockets, and gives them their packets.
fn finish(
    p: Prepared,
    sockets: Vec<Socket>,
    arena: &mut Arena,
    local: &HashSet<IpAddr>,
) -> Result<Port, OpenError> {
    let fail = |e: io::Error| OpenError::new(&p.device, explain(&p.interface, "giving it its sockets", &e));
    let mut control = XdpControl {
        program: p.program,
        netif: p.netif,
        mac: p.mac,
        local: HashSet::new(),
        sharing: Sharing::default(),
        forwarded: HashSet::new(),
        sockets: Vec::new(),
        refused: Arc::default(),
        counters: p.counters,
        mtu_was_too_long: false,
        _attachment: p.attachment,
    };
    control.local.clone_from(local);
    control.change_owners().map_err(fail)?;
    let (mut rx, mut tx) = (Vec::new(), Vec::new());
    for (queue, s) in sockets.into_iter().enumerate() {
        let refused = control.refused.clone();
        let view = arena.ring(Direction::Rx, p.slots, queue as u16);
        let device = XdpRx::new(Kring::new(view.clone()), s.rx, s.fill, s.fd.clone(), refused.clone());
        rx.push(RxQueue::new(RxRing::new(view), Box::new(device.map_err(fail)?)));
        if (queue as u32) < p.queues.tx {
            let view = arena.ring(Direction::Tx, p.slots, queue as u16);
            let device = XdpTx::new(Kring::new(view.clone()), s.tx, s.completion, s.fd.clone(), refused);
            tx.push(TxQueue::new(TxRing::new(view), Box::new(device)));
        }
        control.program.set_socket(queue as u32, s.fd.as_fd()).map_err(fail)?;
        control.sockets.push(s.fd);
    }
    while let Some(until) = p.carrier_until
        && !control.netif.is_running().unwrap_or(true)
    {
        if Instant::now() > until {
            log::warn!("{}: no carrier since it was opened; going on without", p.device);
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let driver = if p.mode == AttachMode::Native { "native" } else { "generic" };
    let copies = if p.zero_copy { "zero-copy" } else { "copy" };
    let info = PortInfo {
        device: p.device,
        interface: Some(p.interface),
        mac: Some(p.mac),
        max_frame: MAX_FRAME,
        mode: format!("xdp, {driver}, {copies} mode"),
    };
    Ok(Port { info, rx, tx, host: Host::Kernel, control: Box::new(control) })
}

struct XdpControl {
    program: Program,
    netif: Netif,
    mac: [u8; 6],
    local: HashSet<IpAddr>,
    sharing: Sharing,
    forwarded: HashSet<ForwardedPort>,
    sockets: Vec<Arc<OwnedFd>>,
    refused: Arc<Refused>,
    counters: LinkCounters,
    mtu_was_too_long: bool,
    _attachment: Attachment,
}

impl XdpControl {
    /// Brings the program's addresses to what they are to be.
    fn change_owners(&mut self) -> io::Result<()> {
        let mut wanted: HashMap<IpAddr, Owner> = self.local.iter().map(|a| (*a, Owner::Host)).collect();
        wanted.extend(self.sharing.announced.iter().map(|a| (IpAddr::from(*a), Owner::Announced)));
        wanted.extend(self.sharing.shared.iter().map(|a| (IpAddr::from(*a), Owner::Shared)));
        self.program.set_owners(&wanted).map_err(|e| full("local addresses", e))
    }

    /// Brings the program's forwarded ports to what they are to be. Goes on after an error, and gives
    /// the first.
    fn change_forwarded(&mut self) -> io::Result<()> {
        let wanted: HashSet<ForwardedPort> = self.sharing.forwarded.iter().copied().collect();
        let mut result = Ok(());
        let changes: Vec<ForwardedPort> = self.forwarded.symmetric_difference(&wanted).copied().collect();
        for port in changes {
            let comes = wanted.contains(&port);
            match self.program.set_forwarded(port, comes) {
                Ok(()) if comes => drop(self.forwarded.insert(port)),
                Ok(()) => drop(self.forwarded.remove(&port)),
                Err(e) => result = result.and(Err(full("forwarded ports", e))),
            }
        }
        result
    }

    /// Follows a change of the device's MAC address.
    fn follow_mac(&mut self) -> io::Result<()> {
        if let Some(mac) = self.netif.mac()?
            && mac != self.mac
        {
            self.program.set_mac(mac)?;
            self.mac = mac;
        }
        Ok(())
    }
}

/// A map's error, in words when it is that there is no room.
fn full(of: &str, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::E2BIG) => io::Error::new(error.kind(), format!("more {of} than the XDP program can hold")),
        _ => error,
    }
}

impl PortControl for XdpControl {
    fn hook(&self) -> io::Result<Option<Hook>> {
        let (program, sockets) = self.program.before()?;
        Ok(Some(Hook { program, sockets, interface: self.netif.index() }))
    }

    fn set_local(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        self.local = addresses.iter().copied().collect();
        self.change_owners()
    }

    fn set_sharing(&mut self, sharing: &Sharing) -> io::Result<()> {
        self.sharing.clone_from(sharing);
        // First the ports: until their address is shared nobody asks for them.
        self.change_forwarded().and(self.change_owners())
    }

    fn set_vlans(&mut self, vlans: &[Vlan]) -> io::Result<()> {
        self.program.set_vlans(vlans)
    }

    fn tend(&mut self) -> io::Result<()> {
        self.follow_mac()?;
        let too_long = self.netif.mtu()? > MAX_FRAME - LINK_HEADER;
        if too_long && !self.mtu_was_too_long {
            log::warn!(
                "the MTU of interface {} was raised beyond {}: longer packets are dropped",
                self.netif.name(),
                MAX_FRAME - LINK_HEADER
            );
        }
        self.mtu_was_too_long = too_long;
        Ok(())
    }

    fn losses(&mut self) -> Losses {
        let (passed_up, passed_up_bytes) = self.program.passed().unwrap_or_default();
        let mut losses = Losses {
            passed_up,
            passed_up_bytes,
            rx_errors: self.refused.rx.load(Ordering::Relaxed),
            tx_errors: self.refused.tx.load(Ordering::Relaxed),
            ..Losses::default()
        };
        for socket in &self.sockets {
            if let Ok(s) = socket::statistics(socket.as_fd()) {
                // A packet that found no buffer in the FILL ring is counted in rx_dropped, too.
                losses.rx_dropped += s.rx_dropped + s.rx_ring_full;
                losses.rx_errors += s.rx_invalid_descs;
                losses.tx_errors += s.tx_invalid_descs;
            }
        }
        if let Err(e) = self.counters.add_to(&mut losses) {
            log::debug!("no counters from the interface: {e}");
        }
        losses
    }
}
