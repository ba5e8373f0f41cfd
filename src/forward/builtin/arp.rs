//! ARP (RFC 826, RFC 5227): requests for the port's addresses are answered, and neighbours heard.

use zerocopy::IntoBytes;

use super::{Here, Learned, Outcome, is_on_link4};
use crate::forward::verdict::Verdict;
use crate::wire::arp::{ArpPacket, REPLY, REQUEST};
use crate::wire::ethernet;

pub(super) fn handle(here: &Here, out: &mut [u8]) -> Result<Outcome, Verdict> {
    let packet = ArpPacket::parse(here.link.payload).ok_or(Verdict::BadHeader)?;
    let operation = packet.operation.get();
    let (sender, mac) = (packet.sender(), packet.sender_mac);
    if !matches!(operation, REQUEST | REPLY) || !ethernet::is_unicast(&mac) || mac == here.port.mac {
        return Err(Verdict::BadHeader);
    }
    let has = |address| here.port.addresses4.iter().any(|net| net.addr() == address);
    if has(sender) {
        // Someone else claims our address; answering would only fan the quarrel.
        return Ok(Outcome { conflict: Some((sender.into(), mac)), ..Outcome::ANSWERED });
    }
    let for_us = has(packet.target());
    let mut outcome = Outcome { learned: learned(here, packet, for_us), ..Outcome::ANSWERED };
    if operation == REQUEST && for_us {
        let reply = ArpPacket::new(REPLY, (here.port.mac, packet.target()), (mac, sender));
        outcome.reply = here.begin_reply(out, mac, reply.as_bytes().len()).map(|(len, place)| {
            place.copy_from_slice(reply.as_bytes());
            len
        });
    }
    Ok(outcome)
}

/// A sender in one of the port's prefixes is learned when it talks to us, and brought up to date
/// when it talks to others. From elsewhere only a reply to us counts, and only for an address that
/// was asked for: a gateway outside the prefix. A probe (sender 0.0.0.0) tells of nobody.
fn learned(here: &Here, packet: &ArpPacket, for_us: bool) -> Option<Learned> {
    let on_link = is_on_link4(here.port, packet.sender());
    let reply_to_us = packet.operation.get() == REPLY && for_us && here.link.destination == here.port.mac;
    let single = crate::wire::ipv4::is_single_host(packet.sender());
    (on_link || (reply_to_us && single)).then_some(Learned {
        address: packet.sender().into(),
        mac: packet.sender_mac,
        create: on_link && for_us,
        replace: true,
    })
}
