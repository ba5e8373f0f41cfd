//! ARP for addresses in front that the host does not have and the router answers for
//! (`announce = true`), whatever stands behind the port's device.

use zerocopy::IntoBytes;

use super::{Context, ETHERNET, Ending, Slow};
use crate::{
    forward::{
        builtin,
        handover::{Exit, Origin},
        messages::ToKeeper,
        verdict::Verdict,
    },
    tables::PortId,
    wire::{
        arp::{ArpPacket, REPLY, REQUEST},
        ethernet::{self, Mac},
    },
};

impl Slow {
    /// Answers an ARP request for an address that the port's rules announce; `None` when the packet
    /// is about none.
    pub(super) fn announced(&mut self, context: &mut Context<'_>, frame: &[u8]) -> Option<Ending> {
        let (rules, port) = (&context.tables.masquerade, context.port);
        if rules.announced.is_empty() {
            return None;
        }
        let packet = ArpPacket::parse(frame.get(ETHERNET..)?)?;
        let (sender, target, mac) = (packet.sender(), packet.target(), packet.sender_mac);
        if rules.announces(port, sender) {
            if mac != context.port().mac {
                // Someone else claims it; answering would only fan the quarrel (RFC 5227).
                let _ = self.keeper.try_send(ToKeeper::Conflict { port, address: sender.into(), mac });
            }
            return Some(Verdict::Answered.into());
        }
        let asks = packet.operation.get() == REQUEST && ethernet::is_unicast(&mac);
        if !asks || !rules.announces(port, target) {
            return None;
        }
        let reply = ArpPacket::new(REPLY, (context.port().mac, target), (mac, sender));
        self.send_arp(context, port, mac, &reply);
        Some(Verdict::Answered.into())
    }

    /// Tells the stations on the link of `port` that an address is here (RFC 5227 section 3).
    #[cold]
    pub fn announce(&mut self, context: &mut Context<'_>, port: PortId, address: std::net::Ipv4Addr) {
        let Some(table) = context.tables.ports.get(usize::from(port)) else { return };
        let packet = ArpPacket::new(REQUEST, (table.mac, address), ([0; 6], address));
        self.send_arp(context, port, ethernet::BROADCAST, &packet);
    }

    fn send_arp(&mut self, context: &mut Context<'_>, port: PortId, to: Mac, packet: &ArpPacket) {
        let Some(table) = context.tables.ports.get(usize::from(port)) else { return };
        let place = &mut self.scratch[..];
        let bytes = packet.as_bytes();
        let Some((len, payload)) = builtin::begin(place, (to, table.mac), None, ethernet::ARP, bytes.len())
        else {
            return;
        };
        payload.copy_from_slice(bytes);
        context.out.send(Exit::Wire(port), Origin::Made, &self.scratch[..len]);
    }
}
