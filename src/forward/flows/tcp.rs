//! What a middlebox remembers of a TCP connection: which side has sent SYN and FIN, and whether
//! one has broken it off. RFC 7857 section 2, after RFC 6146 section 3.5.2.
//!
//! Every valid order is kept up with: also when both sides open at once, close at once, or one
//! goes on sending after the other has closed (RFC 5382 REQ-2). A RST ends nothing by itself,
//! since anybody can send one: it makes the connection transitory, and if another packet comes
//! after it, the connection is what it was.

use super::flow::Direction;
use crate::wire::tcp::{FIN, RST, SYN};

/// The side that began has sent SYN.
pub const SYN_FORTH: u8 = 1;
/// The other side has sent SYN.
pub const SYN_BACK: u8 = 2;
/// The side that began has sent FIN.
pub const FIN_FORTH: u8 = 4;
/// The other side has sent FIN.
pub const FIN_BACK: u8 = 8;
/// The last packet was a RST.
pub const BROKEN: u8 = 16;
/// Packets have come from the side that did not begin.
pub const HEARD_BACK: u8 = 32;

/// The state after a packet with these TCP flags.
#[inline(always)]
pub fn after(state: u8, direction: Direction, flags: u8) -> u8 {
    let back = u8::from(direction == Direction::Back);
    let heard = state | (back * HEARD_BACK);
    if flags & RST != 0 {
        return heard | BROKEN;
    }
    if flags & SYN != 0 && is_over(state) {
        // A new connection between the same ports.
        return (SYN_FORTH << back) | (back * HEARD_BACK);
    }
    let syn = u8::from(flags & SYN != 0) * (SYN_FORTH << back);
    let fin = u8::from(flags & FIN != 0) * (FIN_FORTH << back);
    (heard & !BROKEN) | syn | fin
}

/// Whether the connection is open, in one direction at least.
#[inline(always)]
pub fn is_established(state: u8) -> bool {
    let both_syn = state & (SYN_FORTH | SYN_BACK) == SYN_FORTH | SYN_BACK;
    let both_fin = state & (FIN_FORTH | FIN_BACK) == FIN_FORTH | FIN_BACK;
    both_syn & !both_fin & (state & BROKEN == 0)
}

/// Whether a SYN would open another connection between the same ends.
#[inline(always)]
pub fn is_over(state: u8) -> bool {
    state & (FIN_FORTH | FIN_BACK) == FIN_FORTH | FIN_BACK || state & BROKEN != 0
}

/// Whether the side that did not begin has sent anything but a RST.
pub fn is_answered(state: u8) -> bool {
    state & HEARD_BACK != 0
}

/// The state's name, for people.
pub fn name(state: u8) -> &'static str {
    let fins = state & (FIN_FORTH | FIN_BACK);
    match state & (SYN_FORTH | SYN_BACK) {
        _ if state & BROKEN != 0 => "reset",
        _ if fins == FIN_FORTH | FIN_BACK => "closed",
        0 => "unknown",
        _ if fins != 0 => "closing",
        3 => "established",
        _ => "opening",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp::ACK;
    use Direction::{Back, Forth};

    fn run(steps: &[(Direction, u8)]) -> u8 {
        steps.iter().fold(0, |state, (direction, flags)| after(state, *direction, *flags))
    }

    #[test]
    fn rule_51_every_way_to_open_and_close_is_kept_up_with() {
        let open = [(Forth, SYN), (Back, SYN | ACK), (Forth, ACK)];
        let at_once = [(Forth, SYN), (Back, SYN), (Forth, SYN | ACK), (Back, SYN | ACK)];
        for open in [&open[..], &at_once[..]] {
            assert_eq!(name(run(&open[..1])), "opening");
            assert!(!is_established(run(&open[..1])));
            assert!(is_established(run(open)), "{open:?}");
            let half = [open, &[(Forth, FIN | ACK), (Back, ACK), (Back, ACK)]].concat();
            assert!(is_established(run(&half)), "the other side still sends");
            assert_eq!(name(run(&half)), "closing");
            for end in [[(Forth, FIN | ACK), (Back, FIN | ACK)], [(Back, FIN | ACK), (Forth, FIN | ACK)]] {
                let closed = run(&[open, &end].concat());
                assert!(!is_established(closed));
                assert_eq!(name(closed), "closed");
                assert_eq!(
                    after(after(closed, Forth, SYN), Back, SYN | ACK) & !HEARD_BACK,
                    3,
                    "opened again"
                );
            }
        }
    }

    #[test]
    fn rule_61_a_reset_is_over_when_packets_go_on() {
        let open = run(&[(Forth, SYN), (Back, SYN | ACK)]);
        for direction in [Forth, Back] {
            let broken = after(open, direction, RST | ACK);
            assert!(!is_established(broken));
            assert_eq!(name(broken), "reset");
            assert!(is_established(after(broken, direction, ACK)));
            assert_eq!(name(after(broken, direction, SYN)), "opening");
        }
    }
}
