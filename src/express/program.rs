//! The express program's bytes, and what is put in where they have marks.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use netmap::device::xdp::bpf;

use super::layout::{Maps, Place};

/// What `make bpf` makes of `express.bpf.c`: instructions of 64 bits, little-endian.
const BYTES: &[u8] = include_bytes!("express.bpf.bin");
/// The same for kernels that do not tell a frame's length.
const STEPS: &[u8] = include_bytes!("express-steps.bpf.bin");
/// Upper half of the constant that marks a place; the lower half is the place's number.
const MARK: u64 = 0x6578_7072;
/// The instruction that loads a constant of 64 bits; the one behind it has the upper half.
const LOAD: u64 = 0x18;

/// How a program learns how long a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// It asks the kernel, which knows since Linux 5.18.
    Asked,
    /// It counts, in a dozen steps: more ways than the verifier goes for those without CAP_PERFMON.
    Counted,
}

/// Loads the program of a port: for packets that come in by `port` and otherwise go to `sockets`.
///
/// # Errors
/// The kernel's; when it refuses the program, with the reason.
pub(super) fn load(maps: &Maps, length: Length, sockets: BorrowedFd, port: u16) -> io::Result<OwnedFd> {
    let mut code = instructions(match length {
        Length::Asked => BYTES,
        Length::Counted => STEPS,
    });
    put_in(&mut code, &maps.places(sockets.as_raw_fd(), port));
    bpf::load("sweep_express", &code)
}

fn instructions(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// Replaces every mark by what belongs there.
fn put_in(code: &mut [u64], places: &[Place]) {
    let mut at = 0;
    while let Some([load, upper]) = code.get_mut(at..).and_then(<[u64]>::first_chunk_mut::<2>) {
        if *load & 0xff != LOAD {
            at += 1;
            continue;
        }
        at += 2;
        if *upper >> 32 != MARK {
            continue;
        }
        let Some(place) = places.get((*load >> 32) as usize) else { continue };
        // What the constant is: an address or a handle to be resolved, or just a number.
        let (kind, value) = match *place {
            Place::Handle(fd) => (1, u64::from(fd as u32)),
            Place::Value(fd) => (2, u64::from(fd as u32)),
            Place::Number(number) => (0, number),
        };
        *load = *load & 0xfff | kind << 12 | value << 32;
        *upper = value >> 32 << 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_replaced_and_nothing_else() {
        let code = [LOAD | 3 << 8 | 1 << 32, MARK << 32, 0x95, LOAD | 2 << 8 | 1 << 32, 7 << 32, 0x95];
        let mut handle = code;
        put_in(&mut handle, &[Place::Number(0), Place::Handle(9)]);
        assert_eq!(handle, [LOAD | 0x13 << 8 | 9 << 32, 0, 0x95, code[3], code[4], 0x95]);
        let mut number = code;
        put_in(&mut number, &[Place::Number(0), Place::Number(5 << 32 | 6)]);
        assert_eq!(number[..2], [LOAD | 3 << 8 | 6 << 32, 5 << 32]);
    }

    #[test]
    fn every_mark_of_the_programs_has_its_place() {
        for code in [BYTES, STEPS].map(instructions) {
            let mut found = [false; 14];
            let mut at = 0;
            while at + 1 < code.len() {
                let is_load = code[at] & 0xff == LOAD;
                if is_load && code[at + 1] >> 32 == MARK {
                    found[(code[at] >> 32) as usize] = true;
                }
                at += if is_load { 2 } else { 1 };
            }
            assert_eq!(found, [true; 14]);
        }
    }
}
