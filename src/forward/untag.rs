//! Before parse, on ports with VLAN sub-ports: the tags of a burst's frames (IEEE 802.1Q, 802.1ad).
//!
//! A frame of a sub-port's loses its tags in place: its MAC addresses move behind them, and what the
//! stages see begins there, an untagged frame like any other. Whoever sends it on with as many tags
//! finds the room for them in front (`outputs`). A tag with VID 0 carries a priority alone and counts
//! as none (802.1Q 9.6). Frames with other tags stay as they are, on the port itself.

use netmap::Frame;

use super::burst::{BURST, Burst};
use crate::{
    tables::{PortId, Trunk},
    wire::vlan::{self, ADDRESSES, Priority, TAG_LEN, Tag, Tags},
};

/// Takes the tags off the burst's frames, received on `port`, and notes whose each is. Gives the
/// packets, one bit each.
#[inline(never)]
pub fn untag(burst: &mut Burst, port: PortId, trunk: &Trunk) -> u64 {
    let mut found = std::mem::take(&mut burst.untagged);
    let n = burst.len().min(BURST);
    for (at, frame) in burst.frames().iter_mut().enumerate().take(n) {
        let (of, skipped, priority) = take_off(frame, port, trunk);
        (found.port[at], found.skipped[at], found.priority[at]) = (of, skipped, priority);
    }
    burst.untagged = found;
    (1u64 << n) - 1
}

/// Takes out of `left` the first packet and all others of its port: the port, and the packets.
#[inline(always)]
pub fn next_group(burst: &Burst, left: &mut u64) -> Option<(PortId, u64)> {
    let first = left.trailing_zeros() as usize;
    let port = *burst.untagged.port.get(first).filter(|_| *left != 0)?;
    let (mut group, mut others) = (0, *left);
    while others != 0 {
        let at = others.trailing_zeros() as usize;
        group |= u64::from(burst.untagged.port[at % BURST] == port) << at;
        others &= others - 1;
    }
    *left &= !group;
    Some((port, group))
}

/// Takes the tags off one frame: whose it is, the bytes of tags and their priorities.
#[inline(always)]
fn take_off(frame: &mut Frame, port: PortId, trunk: &Trunk) -> (PortId, u8, Priority) {
    let untagged = (port, 0, Priority::default());
    let Some((of, len, priority)) = read(frame.bytes(), trunk) else { return untagged };
    let bytes = frame.bytes_mut();
    bytes.copy_within(..ADDRESSES, len);
    frame.skip(len as u32);
    (of.unwrap_or(port), len as u8, priority)
}

/// The tag at `at`, and the EtherType behind it.
#[inline(always)]
fn tag(frame: &[u8], at: usize) -> Option<(bool, u16, u16)> {
    let [a, b, c, d, e, f] = *frame.get(at..)?.first_chunk()?;
    let ethertype = u16::from_be_bytes([a, b]);
    let service = ethertype == crate::wire::ethernet::SERVICE_VLAN;
    vlan::is_tag(ethertype).then_some((service, u16::from_be_bytes([c, d]), u16::from_be_bytes([e, f])))
}

/// Whose tags a frame carries, their length in bytes and their priorities. The owner is `None` for
/// the port itself; there is nothing where there are no tags to be taken off.
#[inline(always)]
pub fn read(frame: &[u8], trunk: &Trunk) -> Option<(Option<PortId>, usize, Priority)> {
    let (mut service, mut control, mut next) = tag(frame, ADDRESSES)?;
    let mut len = TAG_LEN;
    if control & 0x0fff == 0 {
        let priority = Priority::of(control, control);
        match tag(frame, ADDRESSES + TAG_LEN) {
            None => return Some((None, len, priority)),
            // The priority of the tag that names a VLAN is the frame's.
            Some(second) => (service, control, next) = second,
        }
        len += TAG_LEN;
    }
    let outer = Tag { service, vlan: control & 0x0fff };
    if trunk.is_stacked()
        && vlan::is_tag(next)
        && let Some((service, second, _)) = tag(frame, ADDRESSES + len)
        && second & 0x0fff != 0
    {
        let inner = Some(Tag { service, vlan: second & 0x0fff });
        if let Some(port) = trunk.find(Tags { outer, inner }) {
            return Some((Some(port), len + TAG_LEN, Priority::of(control, second)));
        }
    }
    let port = trunk.find(Tags { outer, inner: None })?;
    Some((Some(port), len, Priority::of(control, control)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tags: &[u16]) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..12).collect();
        tags.iter().for_each(|word| frame.extend(word.to_be_bytes()));
        frame.extend([0x08, 0x00, 0x45, 1, 2, 3]);
        frame
    }

    #[test]
    fn each_kind_of_tag_finds_its_port() {
        let ports = ["100", "s200", "s200.100", "7.100"].map(|text| text.parse().unwrap());
        let trunk = Trunk::new(ports.into_iter().zip(10..)).unwrap();
        let priority = |outer, inner| Priority::of(outer, inner);
        for (tags, expected) in [
            (&[][..], None),
            (&[0x8100, 100], Some((Some(10), 4, priority(0, 0)))),
            (&[0x8100, 0xf064], Some((Some(10), 4, priority(0xf000, 0xf000)))),
            (&[0x8100, 101], None),
            (&[0x88a8, 100], None),
            (&[0x88a8, 200], Some((Some(11), 4, priority(0, 0)))),
            (&[0x88a8, 0x20c8, 0x8100, 0x6064], Some((Some(12), 8, priority(0x2000, 0x6000)))),
            // Another customer's VLAN in it: the service VLAN's own, with the tag.
            (&[0x88a8, 200, 0x8100, 101], Some((Some(11), 4, priority(0, 0)))),
            (&[0x8100, 7, 0x8100, 100], Some((Some(13), 8, priority(0, 0)))),
            (&[0x8100, 7, 0x8100, 101], None),
            (&[0x8100, 0xe000], Some((None, 4, priority(0xe000, 0xe000)))),
            (&[0x8100, 0xe000, 0x8100, 0x2064], Some((Some(10), 8, priority(0x2000, 0x2000)))),
        ] {
            assert_eq!(read(&frame(tags), &trunk), expected, "{tags:x?}");
        }
        let whole = frame(&[0x88a8, 200, 0x8100, 100]);
        for len in 0..18 {
            assert!(read(&whole[..len], &trunk).is_none_or(|(port, ..)| port == Some(11)), "cut to {len}");
        }
    }

    #[test]
    fn tags_come_off_in_place() {
        let trunk = Trunk::new([(Tags::vlan(100), 5)]).unwrap();
        let mut bytes = frame(&[0x8100, 0x2064]);
        let mut frame_of = Frame::over(&mut bytes);
        let (port, skipped, priority) = take_off(&mut frame_of, 1, &trunk);
        assert_eq!((port, skipped, priority), (5, 4, Priority::of(0x2000, 0x2000)));
        assert_eq!(frame_of.bytes(), frame(&[]));
    }
}
