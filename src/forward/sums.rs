//! Samples of TCP: does what arrives on a port carry right checksums?
//!
//! A veth's peer and a virtual machine leave checksums to a device that never comes. Where their
//! frames reach a router's ring, the checksums are unfinished, and whoever gets the segments
//! discards them, while ping works. A router does not touch these checksums (RFC 1812), but it can
//! say what is wrong. One packet in very many is looked at, outside of the stages.

use crate::wire::{
    checksum::{Sum, pseudo4, pseudo6},
    ethernet, ipv4, ipv6, tcp,
};

/// Protocol number of TCP.
const TCP: u8 = 6;
/// Packets until the next sample, when the last one was right.
const SELDOM: u32 = 1024;
/// Packets until the next sample, when the last one was not TCP.
const OFTEN: u32 = 8;
/// So many wrong ones in a row, and none right, are no accident.
const ENOUGH: u32 = 4;

/// What a receive ring's samples have shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Samples {
    /// Packets until the next sample.
    left: u32,
    /// Wrong ones in a row.
    wrong: u32,
}

impl Default for Samples {
    fn default() -> Self {
        Self { left: 1, wrong: 0 }
    }
}

impl Samples {
    /// Whether the first of the next `packets` packets is to be looked at.
    #[inline(always)]
    pub fn is_due(&mut self, packets: u32) -> bool {
        let due = packets >= self.left;
        self.left = self.left.wrapping_sub(packets);
        due
    }

    /// Takes a sample, a whole frame for the MAC address `mac` or any other. Gives `true` once: when
    /// the port's TCP has proved to come with wrong checksums.
    #[cold]
    pub fn look(&mut self, frame: &[u8], mac: &ethernet::Mac) -> bool {
        let right = sum_is_right(frame, mac);
        self.left = match right {
            None => OFTEN,
            Some(true) => SELDOM,
            Some(false) => 1,
        };
        match right {
            None => return false,
            Some(true) => self.wrong = 0,
            Some(false) => self.wrong += 1,
        }
        let told = self.wrong == ENOUGH;
        if self.wrong >= ENOUGH {
            // It has been said; from now on there is no hurry.
            self.left = SELDOM;
            self.wrong = ENOUGH + 1;
        }
        told
    }
}

/// Whether a TCP segment's checksum is right; `None` for all else.
fn sum_is_right(frame: &[u8], mac: &ethernet::Mac) -> Option<bool> {
    let (header, packet) = ethernet::parse(frame).filter(|(header, _)| header.destination == *mac)?;
    let (pseudo, segment): (Sum, &[u8]) = match header.ethertype.get() {
        ethernet::IPV4 => {
            let packet = ipv4::parse(packet).ok()?;
            let (header, segment) = (packet.header, packet.payload);
            let len = u16::try_from(segment.len()).ok()?;
            let whole = header.protocol == TCP && !header.is_fragment();
            whole.then(|| (pseudo4(header.source(), header.destination(), TCP, len), segment))?
        }
        ethernet::IPV6 => {
            let packet = ipv6::parse(packet).ok()?;
            let (header, segment) = (packet.header, packet.payload);
            let len = u32::try_from(segment.len()).ok()?;
            let plain = header.next_header == TCP;
            plain.then(|| (pseudo6(header.source(), header.destination(), TCP, len), segment))?
        }
        _ => return None,
    };
    tcp::parse(segment)?;
    Some(pseudo.bytes(segment).checksum() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: ethernet::Mac = [2, 0, 0, 0, 0, 1];

    /// A SYN, with its checksum right or only begun, as a veth's peer leaves it.
    fn syn(is_ipv6: bool, finished: bool) -> Vec<u8> {
        let mut segment =
            [[0x30, 0x39, 0, 80].as_slice(), &[0; 8], &[0x50, 2, 0xff, 0xff, 0, 0, 0, 0]].concat();
        let (one, other) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let (a, b) = ([10, 0, 1, 2].into(), [10, 0, 2, 2].into());
        let pseudo = if is_ipv6 { pseudo6(one, other, TCP, 20) } else { pseudo4(a, b, TCP, 20) };
        let sum = if finished { pseudo.bytes(&segment).checksum() } else { pseudo.fold() };
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [MAC.as_slice(), &[2, 0, 0, 0, 0, 9]].concat();
        if is_ipv6 {
            frame.extend(ethernet::IPV6.to_be_bytes());
            frame.extend(zerocopy::IntoBytes::as_bytes(&ipv6::Ipv6Header::new(one, other, TCP, 64, 20)));
        } else {
            frame.extend(ethernet::IPV4.to_be_bytes());
            let mut header = ipv4::Ipv4Header::new(a, b, TCP, 20);
            ipv4::fill_checksum(zerocopy::IntoBytes::as_mut_bytes(&mut header));
            frame.extend(zerocopy::IntoBytes::as_bytes(&header));
        }
        frame.extend(&segment);
        // The link's padding belongs to nothing.
        frame.resize(frame.len() + 4, 0xff);
        frame
    }

    #[test]
    fn finished_checksums_are_told_from_unfinished_ones() {
        for is_ipv6 in [false, true] {
            assert_eq!(sum_is_right(&syn(is_ipv6, true), &MAC), Some(true));
            assert_eq!(sum_is_right(&syn(is_ipv6, false), &MAC), Some(false));
            assert_eq!(sum_is_right(&syn(is_ipv6, false), &[2; 6]), None, "for another station");
            for len in 0..syn(is_ipv6, true).len() - 4 {
                assert_eq!(sum_is_right(&syn(is_ipv6, true)[..len], &MAC), None, "cut to {len}");
            }
        }
    }

    #[test]
    fn only_wrong_ones_in_a_row_are_told_and_only_once() {
        let mut samples = Samples::default();
        let (good, bad) = (syn(false, true), syn(false, false));
        let mut told = Vec::new();
        for frame in [&bad, &bad, &bad, &good, &bad, &bad, &bad, &bad, &bad, &bad] {
            while !samples.is_due(1) {}
            told.push(samples.look(frame, &MAC));
        }
        assert_eq!(told.iter().position(|told| *told), Some(7));
        assert_eq!(told.iter().filter(|told| **told).count(), 1);
    }

    #[test]
    fn one_packet_in_many_is_looked_at() {
        let mut samples = Samples::default();
        let good = syn(false, true);
        let mut looked = 0;
        for _ in 0..1000 {
            if samples.is_due(256) {
                looked += 1;
                samples.look(&good, &MAC);
            }
        }
        assert_eq!(looked, 250);
    }
}
