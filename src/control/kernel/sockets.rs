//! The host's own TCP and UDP sockets, asked for by sock_diag(7): which ports they hold.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};

use super::{
    linux::{error_of, for_each_message, receive},
    request,
};
use crate::{
    tables::held_ports::HeldPort,
    wire::ipv4::{TCP, UDP},
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The attribute that says whether an IPv6 socket is for IPv6 alone.
const INET_DIAG_SKV6ONLY: u16 = 11;
/// Bytes of `struct inet_diag_msg`.
const MESSAGE: usize = 72;
/// Room for one datagram of the kernel's, in bytes.
const DATAGRAM: usize = 64 << 10;

// States, as bits of a request.
const TIME_WAIT: u32 = 1 << 6;
const LISTEN: u32 = 1 << 10;
const ALL: u32 = (1 << 13) - 1;

/// Which of the host's sockets are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// TCP's that listen, and all of UDP's: few, and quickly listed.
    Waiting,
    /// Connections of TCP's: the kernel goes through a large table for them.
    Connected,
}

/// The ports that sockets of the host's hold for IPv4 in the calling thread's network namespace, in
/// order.
///
/// # Errors
/// The kernel's: `ENOENT` where it cannot be asked for sockets.
pub fn held_ports(which: Which) -> io::Result<Vec<HeldPort>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut held = Vec::new();
    let requests: &[(u8, u32)] = match which {
        Which::Waiting => &[(TCP, LISTEN), (UDP, ALL)],
        Which::Connected => &[(TCP, ALL & !LISTEN & !TIME_WAIT)],
    };
    let families = [libc::AF_INET, libc::AF_INET6];
    let all = requests.iter().flat_map(|request| families.map(|family| (family as u8, *request)));
    for (sequence, (family, (protocol, states))) in (1..).zip(all) {
        socket.send(&list(family, protocol, states, sequence), 0)?;
        match read_all(&socket, protocol, sequence, &mut held) {
            // A kernel without IPv6 has no sockets of it.
            Err(e) if family == libc::AF_INET6 as u8 && e.raw_os_error() == Some(libc::ENOENT) => {}
            other => other?,
        }
    }
    held.sort_unstable();
    held.dedup();
    Ok(held)
}

/// The request for all sockets of a family and protocol in one of these states.
fn list(family: u8, protocol: u8, states: u32, sequence: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(72);
    request::begin(&mut out, SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, sequence);
    // struct inet_diag_req_v2: family, protocol, extensions, padding, states, 48 bytes of ends.
    out.extend_from_slice(&[family, protocol, 0, 0]);
    out.extend_from_slice(&states.to_ne_bytes());
    out.resize(out.len() + 48, 0);
    request::finish(&mut out);
    out
}

fn read_all(socket: &Socket, protocol: u8, sequence: u32, held: &mut Vec<HeldPort>) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM];
    loop {
        // The kernel always has the next part of a listing ready, up to its end.
        let len = receive(socket, &mut buffer)?.ok_or(io::ErrorKind::TimedOut)?;
        let mut end = None;
        for_each_message(&buffer[..len], |header, payload| match header.kind {
            _ if header.sequence != sequence => {}
            kind if kind == libc::NLMSG_DONE as u16 => end = Some(0),
            kind if kind == libc::NLMSG_ERROR as u16 => end = Some(error_of(payload)),
            _ => held.extend(parse(protocol, payload)),
        })
        .map_err(|_| io::ErrorKind::InvalidData)?;
        match end {
            None => {}
            Some(0) => return Ok(()),
            Some(error) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// What one socket holds for IPv4, if anything. `message` is a `struct inet_diag_msg` with its
/// attributes: family, state, two bytes; the ports and the addresses in network order.
fn parse(protocol: u8, message: &[u8]) -> Option<HeldPort> {
    let (fixed, attributes) = message.split_at_checked(MESSAGE)?;
    let port = u16::from_be_bytes([fixed[4], fixed[5]]);
    let address: [u8; 16] = fixed[8..24].try_into().ok()?;
    let held = |address: Ipv4Addr| {
        let address = Some(address).filter(|address| !address.is_unspecified());
        HeldPort { protocol, address, port }
    };
    if port == 0 {
        return None;
    }
    if i32::from(fixed[0]) == libc::AF_INET {
        return Some(held(Ipv4Addr::new(address[0], address[1], address[2], address[3])));
    }
    let address = Ipv6Addr::from(address);
    match address.to_ipv4_mapped() {
        Some(address) => Some(held(address)),
        None if address.is_unspecified() && !is_for_ipv6_alone(attributes) => {
            Some(HeldPort { protocol, address: None, port })
        }
        None => None,
    }
}

fn is_for_ipv6_alone(mut attributes: &[u8]) -> bool {
    while let [a, b, c, d, value, ..] = *attributes {
        let (len, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        if kind == INET_DIAG_SKV6ONLY && len > 4 {
            return value != 0;
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn what_listens_on_this_machine_is_found() {
        let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let names = UdpSocket::bind("127.0.0.2:0").unwrap();
        let caller = TcpStream::connect(here.local_addr().unwrap()).unwrap();
        let waiting = held_ports(Which::Waiting).unwrap();
        let port = |address: std::net::SocketAddr| address.port();
        let held = |protocol, address: Option<[u8; 4]>, port| HeldPort {
            protocol,
            address: address.map(Ipv4Addr::from),
            port,
        };
        assert!(waiting.contains(&held(TCP, None, port(everywhere.local_addr().unwrap()))));
        assert!(waiting.contains(&held(TCP, Some([127, 0, 0, 1]), port(here.local_addr().unwrap()))));
        assert!(waiting.contains(&held(UDP, Some([127, 0, 0, 2]), port(names.local_addr().unwrap()))));
        let callers = held(TCP, Some([127, 0, 0, 1]), port(caller.local_addr().unwrap()));
        assert!(!waiting.contains(&callers));
        assert!(held_ports(Which::Connected).unwrap().contains(&callers));
        drop(everywhere);
    }

    #[test]
    fn a_socket_of_ipv6_holds_the_port_for_ipv4_as_well_unless_it_says_otherwise() {
        let message = |address: Ipv6Addr, only: u8| {
            let mut bytes = [0; MESSAGE].to_vec();
            bytes[0] = libc::AF_INET6 as u8;
            bytes[4..6].copy_from_slice(&8080u16.to_be_bytes());
            bytes[8..24].copy_from_slice(&address.octets());
            // Some other attribute first.
            bytes.extend([6, 0, 8, 0, 7, 0, 0, 0, 5, 0, 11, 0, only, 0, 0, 0]);
            bytes
        };
        let held = |address| Some(HeldPort { protocol: TCP, address, port: 8080 });
        let mapped = Ipv4Addr::new(203, 0, 113, 1);
        for (address, only, expected) in [
            (Ipv6Addr::UNSPECIFIED, 0, held(None)),
            (Ipv6Addr::UNSPECIFIED, 1, None),
            (mapped.to_ipv6_mapped(), 0, held(Some(mapped))),
            ("2001:db8::1".parse().unwrap(), 0, None),
        ] {
            let bytes = message(address, only);
            assert_eq!(parse(TCP, &bytes), expected, "{address} {only}");
            assert_eq!(parse(TCP, &bytes[..MESSAGE - 1]), None);
        }
    }

    #[test]
    fn attributes_that_cannot_be_end_the_search() {
        for bytes in [&[0, 0, 11, 0, 1][..], &[255, 255, 1, 0, 1, 0], &[4, 0, 11], &[]] {
            assert!(!is_for_ipv6_alone(bytes), "{bytes:?}");
        }
    }
}
