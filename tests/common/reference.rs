//! A forwarder to compare with: slow, plain, and written from the RFCs alone. It shares no code
//! with the router; its routes are a list that is searched from end to end.
//!
//! The RFCs leave open which of several faults of one packet is found first. The order here:
//! header, the host's address, destination, source, source route, time to live, route, length, options.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::packets::{checksum, pseudo6};

/// Where a prefix leads.
#[derive(Clone, Copy, Debug)]
pub enum To {
    /// To a neighbour whose MAC address is known, over a link that takes so many bytes.
    Next {
        port: usize,
        mac: [u8; 6],
        mtu: usize,
    },
    /// To a link on which the destination is not known.
    Link {
        port: usize,
    },
    Host,
    Blackhole,
    Unreachable,
    Prohibit,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    pub mac: [u8; 6],
    pub addresses: Vec<IpNet>,
}

/// The forwarder.
#[derive(Clone, Debug)]
pub struct Reference {
    pub ports: Vec<Port>,
    pub routes: Vec<(IpNet, To)>,
}

/// What becomes of a frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct End {
    /// The verdict's name.
    pub verdict: &'static str,
    /// What leaves by which port.
    pub out: Vec<(usize, Vec<u8>)>,
    /// Whether the frame goes up to the host.
    pub up: bool,
    /// The frame that goes up: as it came, but for a tag that only gives a priority.
    pub frame: Vec<u8>,
    /// Where in the first frame out the time of day was entered.
    pub time_at: Option<usize>,
    /// The neighbour that has to be found first; it is taken not to answer.
    pub waits_for: Option<(usize, IpAddr)>,
}

fn ends(verdict: &'static str) -> End {
    End { verdict, ..End::default() }
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

fn address4(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
}

fn address6(bytes: &[u8], at: usize) -> Ipv6Addr {
    let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
    octets.into()
}

fn framed(to: [u8; 6], from: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&to[..], &from, &ethertype, packet].concat()
}

impl Reference {
    /// What becomes of a frame that comes in at `port`.
    pub fn frame(&self, port: usize, frame: &[u8]) -> End {
        if frame.len() < 14 {
            return ends("runt");
        }
        let group = frame[0] % 2 == 1;
        if !group && frame[..6] != self.ports[port].mac {
            return ends("not_for_us");
        }
        let end = match word(frame, 12) {
            0x0800 => self.ipv4(port, frame, group),
            0x86dd => self.ipv6(port, frame, group),
            0x8100 | 0x88a8 => return self.tagged(port, frame),
            _ => up(),
        };
        End { frame: frame.to_vec(), ..end }
    }

    /// A frame with a VLAN tag, on a port without VLANs: IEEE 802.1Q.
    fn tagged(&self, port: usize, frame: &[u8]) -> End {
        if frame.len() < 18 {
            return ends("runt");
        }
        // VLAN 0 is no VLAN: the tag only gives a priority. The VLAN of another tag is the host's.
        if word(frame, 14) & 0xfff != 0 {
            return End { frame: frame.to_vec(), ..up() };
        }
        let untagged = [&frame[..12], &frame[16..]].concat();
        match word(&untagged, 12) {
            0x8100 | 0x88a8 => ends("unknown_vlan"),
            _ => self.frame(port, &untagged),
        }
    }

    /// The longest prefix that holds the address.
    fn route(&self, address: IpAddr) -> Option<To> {
        let holding = self.routes.iter().filter(|(net, _)| net.contains(&address));
        holding.max_by_key(|(net, _)| net.prefix_len()).map(|(_, to)| *to)
    }

    /// Whether its packets are the host's, who has rules of its own: our addresses, and what leaves
    /// by a device that is no port.
    fn is_hosts(&self, address: IpAddr) -> bool {
        self.is_ours(address) || matches!(self.route(address), Some(To::Host))
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.ports.iter().flat_map(|p| &p.addresses).any(|net| net.addr() == address)
    }

    /// Whether it means every station of one of our links: RFC 919; a /31 has none (RFC 3021).
    fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address == Ipv4Addr::BROADCAST || (0..self.ports.len()).any(|p| self.is_broadcast_of(p, address))
    }

    fn is_broadcast_of(&self, port: usize, address: Ipv4Addr) -> bool {
        self.ports[port].addresses.iter().any(|net| match net {
            IpNet::V4(net) => net.prefix_len() < 31 && net.broadcast() == address,
            IpNet::V6(_) => false,
        })
    }

    fn ipv4(&self, port: usize, frame: &[u8], group: bool) -> End {
        let bytes = &frame[14..];
        // RFC 1812 5.2.2.
        if bytes.len() < 20 {
            return ends("runt");
        }
        let (header, total) = (usize::from(bytes[0] % 16) * 4, word(bytes, 2));
        if bytes[0] / 16 != 4 || header < 20 || total < header {
            return ends("bad_header");
        }
        if bytes.len() < total {
            return ends("runt");
        }
        if checksum(&bytes[..header]) != 0 {
            return ends("bad_checksum");
        }
        let packet = &bytes[..total];
        let (source, destination) = (address4(packet, 12), address4(packet, 16));
        let first = destination.octets()[0];
        let multicast = (224..240).contains(&first);
        if group {
            return if multicast || self.is_broadcast(destination) { up() } else { ends("link_broadcast") };
        }
        if self.is_hosts(destination.into()) {
            return up();
        }
        if destination == Ipv4Addr::BROADCAST || self.is_broadcast_of(port, destination) {
            return up();
        }
        if self.is_broadcast(destination) {
            return ends("broadcast");
        }
        if multicast {
            return ends("multicast");
        }
        if first == 0 || first == 127 || first >= 240 {
            return ends("martian");
        }
        // RFC 3927 section 2.7: the host may speak to its link, the router forwards nothing.
        if destination.octets()[..2] == [169, 254] {
            return up();
        }
        let from = source.octets();
        let nobody = from[0] == 0 || from[0] == 127 || from[0] >= 224;
        if nobody || self.is_ours(source.into()) || self.is_broadcast(source) {
            return ends("martian");
        }
        if from[..2] == [169, 254] {
            return ends("link_local");
        }
        if source_route(&packet[20..header]) {
            return ends("source_route");
        }
        if packet[8] <= 1 {
            return self.refuse4("ttl_expired", packet, [11, 0], 0);
        }
        match self.route(destination.into()) {
            None => self.refuse4("no_route", packet, [3, 0], 0),
            Some(To::Unreachable) => self.refuse4("unreachable", packet, [3, 1], 0),
            Some(To::Prohibit) => self.refuse4("prohibited", packet, [3, 13], 0),
            Some(To::Blackhole) => ends("blackhole"),
            Some(To::Host) => unreachable!("went up before"),
            Some(To::Link { port }) => {
                let waits_for = Some((port, destination.into()));
                End { waits_for, ..self.refuse4("neighbor_failed", packet, [3, 1], 0) }
            }
            Some(To::Next { port, mac, mtu }) => self.forward4(packet, header, (port, mac, mtu)),
        }
    }

    fn forward4(&self, packet: &[u8], header: usize, (port, mac, mtu): (usize, [u8; 6], usize)) -> End {
        if packet.len() > mtu && packet[6] & 0x40 != 0 {
            return self.refuse4("too_big", packet, [3, 4], mtu as u32);
        }
        let mut sent = packet.to_vec();
        sent[8] -= 1;
        let time_at = match self.enter(&mut sent[20..header], port) {
            Ok(at) => at.map(|at| at + 34),
            Err(at) => return self.refuse4("bad_header", packet, [12, 0], (at as u32 + 20) << 24),
        };
        fill4(&mut sent, header);
        let pieces = if sent.len() <= mtu { vec![sent] } else { fragments(&sent, header, mtu) };
        if pieces.is_empty() {
            return ends("bad_header");
        }
        let verdict = if packet.len() <= mtu { "forwarded" } else { "fragmented" };
        let ours = self.ports[port].mac;
        let out = pieces.iter().map(|piece| (port, framed(mac, ours, piece))).collect();
        End { verdict, out, time_at, ..End::default() }
    }

    /// Record route and timestamp, RFC 791. Gives where the time goes, or where the fault is.
    fn enter(&self, options: &mut [u8], port: usize) -> Result<Option<usize>, usize> {
        let us = self.ports[port].addresses.iter().find_map(|net| match net {
            IpNet::V4(net) => Some(net.addr().octets()),
            IpNet::V6(_) => None,
        });
        let us = us.expect("every port of the test has one");
        let (mut at, mut time) = (0, None);
        while at < options.len() && options[at] != 0 {
            if options[at] == 1 {
                at += 1;
                continue;
            }
            let len = options.get(at + 1).map_or(0, |len| usize::from(*len));
            if len < 2 || at + len > options.len() {
                return Err(at + 1);
            }
            if options[at] == 7 {
                if len < 3 {
                    return Err(at + 1);
                }
                let pointer = usize::from(options[at + 2]);
                if pointer < 4 || (pointer <= len && pointer + 3 > len) {
                    return Err(at + 2);
                }
                if pointer <= len {
                    options[at + pointer - 1..at + pointer + 3].copy_from_slice(&us);
                    options[at + 2] += 4;
                }
            }
            if options[at] == 68 {
                if len < 4 {
                    return Err(at + 1);
                }
                let (pointer, flag) = (usize::from(options[at + 2]), options[at + 3] % 16);
                let need = match flag {
                    0 => 4,
                    1 | 3 => 8,
                    _ => return Err(at + 3),
                };
                if pointer < 5 || (pointer <= len && pointer + need - 1 > len) {
                    return Err(at + 2);
                }
                if pointer > len && flag != 3 {
                    if options[at + 3] >= 0xf0 {
                        return Err(at + 3);
                    }
                    options[at + 3] += 16;
                } else if pointer <= len {
                    let entry = at + pointer - 1;
                    if flag == 1 {
                        options[entry..entry + 4].copy_from_slice(&us);
                    }
                    if flag != 3 || self.is_ours(address4(options, entry).into()) {
                        time = Some(entry + need - 4);
                        options[at + 2] += need as u8;
                    }
                }
            }
            at += len;
        }
        Ok(time)
    }

    /// Ends a packet and tells its sender, unless RFC 1812 4.3.2.7 forbids it.
    fn refuse4(&self, verdict: &'static str, packet: &[u8], says: [u8; 2], rest: u32) -> End {
        let header = usize::from(packet[0] % 16) * 4;
        let later = word(packet, 6) & 0x1fff != 0;
        let query = [0, 8, 9, 10, 13, 14, 15, 16, 17, 18, 42, 43];
        let about_icmp = packet[9] == 1 && !packet.get(header).is_some_and(|kind| query.contains(kind));
        let sender = address4(packet, 12);
        let Some(To::Next { port, mac, .. }) = self.route(sender.into()) else { return ends(verdict) };
        if later || about_icmp {
            return ends(verdict);
        }
        let source = self.ports[port].addresses.iter().find_map(|net| match net.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let Some(source) = source else { return ends(verdict) };
        let mut message = vec![says[0], says[1], 0, 0];
        message.extend(rest.to_be_bytes());
        message.extend(&packet[..packet.len().min(576 - 28)]);
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut error = vec![0x45, 0xc0];
        error.extend(((20 + message.len()) as u16).to_be_bytes());
        error.extend([0, 0, 0x40, 0, 64, 1, 0, 0]);
        error.extend(source.octets());
        error.extend(sender.octets());
        error.extend(message);
        fill4(&mut error, 20);
        End { verdict, out: vec![(port, framed(mac, self.ports[port].mac, &error))], ..End::default() }
    }

    fn ipv6(&self, port: usize, frame: &[u8], group: bool) -> End {
        let bytes = &frame[14..];
        if bytes.len() < 40 {
            return ends("runt");
        }
        if bytes[0] / 16 != 6 {
            return ends("bad_header");
        }
        let total = 40 + word(bytes, 4);
        if bytes.len() < total {
            return ends("runt");
        }
        let packet = &bytes[..total];
        let (source, destination) = (address6(packet, 8), address6(packet, 24));
        let multicast = destination.octets()[0] == 0xff;
        if group {
            return match (multicast, destination.octets()[1] % 16) {
                (false, _) => ends("link_broadcast"),
                (true, 0 | 1) => ends("multicast"),
                (true, _) => up(),
            };
        }
        let link_local = |a: Ipv6Addr| a.octets()[0] == 0xfe && a.octets()[1] & 0xc0 == 0x80;
        if self.is_hosts(destination.into()) || link_local(destination) {
            return up();
        }
        if multicast {
            return ends("multicast");
        }
        if destination.is_unspecified() || destination == Ipv6Addr::LOCALHOST {
            return ends("martian");
        }
        if source.is_unspecified() || source == Ipv6Addr::LOCALHOST || source.octets()[0] == 0xff {
            return ends("martian");
        }
        if link_local(source) {
            return self.beyond_scope(port, frame, packet);
        }
        if self.is_ours(source.into()) {
            return ends("martian");
        }
        if packet[7] <= 1 {
            return self.refuse6("ttl_expired", packet, [3, 0], 0);
        }
        match self.route(destination.into()) {
            None => self.refuse6("no_route", packet, [1, 0], 0),
            Some(To::Unreachable) => self.refuse6("unreachable", packet, [1, 0], 0),
            Some(To::Prohibit) => self.refuse6("prohibited", packet, [1, 1], 0),
            Some(To::Blackhole) => ends("blackhole"),
            Some(To::Host) => unreachable!("went up before"),
            Some(To::Link { port }) => {
                let waits_for = Some((port, destination.into()));
                End { waits_for, ..self.refuse6("neighbor_failed", packet, [1, 3], 0) }
            }
            Some(To::Next { mtu, .. }) if packet.len() > mtu => {
                self.refuse6("too_big", packet, [2, 0], mtu as u32)
            }
            Some(To::Next { port, mac, .. }) => {
                let mut sent = packet.to_vec();
                sent[7] -= 1;
                let out = vec![(port, framed(mac, self.ports[port].mac, &sent))];
                End { verdict: "forwarded", out, ..End::default() }
            }
        }
    }

    fn refuse6(&self, verdict: &'static str, packet: &[u8], says: [u8; 2], rest: u32) -> End {
        let Some(To::Next { port, mac, .. }) = self.route(address6(packet, 8).into()) else {
            return ends(verdict);
        };
        let source = self.own6(port, |octets| octets[0] != 0xfe);
        match source.and_then(|source| error6(packet, source, says, rest)) {
            Some(error) => {
                let out = vec![(port, framed(mac, self.ports[port].mac, &error))];
                End { verdict, out, ..End::default() }
            }
            None => ends(verdict),
        }
    }

    fn own6(&self, port: usize, wanted: fn([u8; 16]) -> bool) -> Option<Ipv6Addr> {
        self.ports[port].addresses.iter().find_map(|net| match net.addr() {
            IpAddr::V6(address) if wanted(address.octets()) => Some(address),
            _ => None,
        })
    }

    /// RFC 4443 3.1 code 2, back over the link that the packet came from.
    fn beyond_scope(&self, port: usize, frame: &[u8], packet: &[u8]) -> End {
        let (mac, sender) = (<[u8; 6]>::try_from(&frame[6..12]).unwrap(), address6(packet, 8));
        let ours = self.ports[port].addresses.iter().any(|net| net.addr() == sender);
        let source = self.own6(port, |octets| octets[0] == 0xfe);
        let error = source.and_then(|source| error6(packet, source, [1, 2], 0));
        match error {
            Some(error) if mac[0] % 2 == 0 && !ours => {
                let out = vec![(port, framed(mac, self.ports[port].mac, &error))];
                End { verdict: "link_local", out, ..End::default() }
            }
            _ => ends("link_local"),
        }
    }
}

fn up() -> End {
    End { verdict: "host", up: true, ..End::default() }
}

fn fill4(packet: &mut [u8], header: usize) {
    packet[10..12].fill(0);
    let sum = checksum(&packet[..header]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Whether there is a source route option, before any that cannot be.
fn source_route(options: &[u8]) -> bool {
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        if options[at] == 1 {
            at += 1;
            continue;
        }
        let len = options.get(at + 1).map_or(0, |len| usize::from(*len));
        if len < 2 || at + len > options.len() {
            return false;
        }
        if options[at] == 131 || options[at] == 137 {
            return true;
        }
        at += len;
    }
    false
}

/// RFC 791 section 3.2. None for a fragment that no datagram can hold.
fn fragments(packet: &[u8], header: usize, mtu: usize) -> Vec<Vec<u8>> {
    let (first, data) = packet.split_at(header);
    let flags = word(first, 6);
    let (start, more) = ((flags & 0x1fff) * 8, flags & 0x2000 != 0);
    if header + start + data.len() > 65535 || (more && data.len() % 8 != 0) {
        return Vec::new();
    }
    let mut later = first[..20].to_vec();
    let mut at = 20;
    while at < header && first[at] != 0 {
        if first[at] == 1 {
            at += 1;
            continue;
        }
        let len = usize::from(first[at + 1]);
        if first[at] >= 128 {
            later.extend(&first[at..at + len]);
        }
        at += len;
    }
    while later.len() % 4 != 0 {
        later.push(0);
    }
    later[0] = 0x40 + (later.len() / 4) as u8;
    let (mut pieces, mut done) = (Vec::new(), 0);
    while done < data.len() {
        let mut piece = if done == 0 { first.to_vec() } else { later.clone() };
        let header = piece.len();
        let rest = data.len() - done;
        let take = if rest <= mtu - header { rest } else { (mtu - header) / 8 * 8 };
        piece.extend(&data[done..done + take]);
        let is_last = done + take == data.len() && !more;
        let flags = flags & 0x8000 | if is_last { 0 } else { 0x2000 } | ((start + done) / 8);
        let len = piece.len();
        piece[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        piece[6..8].copy_from_slice(&(flags as u16).to_be_bytes());
        fill4(&mut piece, header);
        pieces.push(piece);
        done += take;
    }
    pieces
}

/// An ICMPv6 error about a packet to a unicast address, unless RFC 4443 2.4 (e) forbids it.
fn error6(packet: &[u8], source: Ipv6Addr, says: [u8; 2], rest: u32) -> Option<Vec<u8>> {
    if may_be_error6(packet) {
        return None;
    }
    let sender = address6(packet, 8);
    let mut message = vec![says[0], says[1], 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(&packet[..packet.len().min(1280 - 48)]);
    let sum = pseudo6(source, sender, 58, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut error = vec![0x60, 0, 0, 0];
    error.extend((message.len() as u16).to_be_bytes());
    error.extend([58, 64]);
    error.extend(source.octets());
    error.extend(sender.octets());
    error.extend(message);
    Some(error)
}

/// Whether the packet is, or may be a part of, an ICMPv6 error or redirect.
fn may_be_error6(packet: &[u8]) -> bool {
    let (mut next, mut at) = (packet[6], 40);
    loop {
        let Some(left) = packet.get(at..) else { return false };
        if next == 58 {
            return left.first().is_none_or(|kind| *kind < 128 || *kind == 137);
        }
        let len = match (next, left.get(1)) {
            (0 | 43 | 60 | 135, Some(len)) => 8 + 8 * usize::from(*len),
            (51, Some(len)) => 8 + 4 * usize::from(*len),
            (44, Some(_)) => 8,
            _ => return false,
        };
        if left.len() < len {
            return false;
        }
        if next == 44 && word(left, 2) >= 8 {
            return left[0] == 58;
        }
        next = left[0];
        at += len;
    }
}
