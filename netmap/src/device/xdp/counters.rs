//! What the interface itself counts as lost or damaged, before and after the rings (rtnetlink's
//! `IFLA_STATS64`).

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage, Stats64},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::queue::Losses;

/// An interface's counters since this was made.
pub struct LinkCounters {
    socket: Socket,
    index: u32,
    at_start: Stats64,
}

impl LinkCounters {
    /// Begins to count for the interface with this index, in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(index: u32) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut this = Self { socket, index, at_start: Stats64::default() };
        this.at_start = this.read()?;
        Ok(this)
    }

    fn read(&mut self) -> io::Result<Stats64> {
        let mut link = LinkMessage::default();
        link.header.index = self.index;
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(link));
        request.header.flags = NLM_F_REQUEST;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let (reply, _) = self.socket.recv_from_full()?;
        let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply).map_err(io::Error::other)?;
        match reply.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => link
                .attributes
                .into_iter()
                .find_map(|a| if let LinkAttribute::Stats64(s) = a { Some(s) } else { None })
                .ok_or_else(|| io::Error::other("the kernel gives no statistics")),
            NetlinkPayload::Error(e) => Err(e.to_io()),
            _ => Err(io::Error::other("the kernel answers something else")),
        }
    }

    /// Adds what has been lost or damaged since the start. `rx_dropped` is left out: there the
    /// stack counts packets that were passed up to it.
    ///
    /// # Errors
    /// The kernel's; `ENODEV` when the interface is gone.
    pub fn add_to(&mut self, losses: &mut Losses) -> io::Result<()> {
        let now = self.read()?;
        let since = |field: fn(&Stats64) -> u64| field(&now).saturating_sub(field(&self.at_start));
        losses.rx_dropped += since(|s| s.rx_missed_errors);
        losses.rx_errors += since(|s| s.rx_errors);
        losses.tx_dropped += since(|s| s.tx_dropped);
        losses.tx_errors += since(|s| s.tx_errors);
        Ok(())
    }
}
