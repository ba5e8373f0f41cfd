//! FreeBSD's routing socket, route(4): from its bytes to [`KernelEvent`]s. Nothing here makes a
//! system call, so all of it is compiled and tested on every system; the numbers and the layout
//! are those of FreeBSD on 64-bit machines, and `scripts/freebsd-abi.c` holds FreeBSD's own headers
//! to them.
//!
//! [`message`] understands one message; [`translate`] makes events of them, for which it remembers
//! what the messages leave out.
//!
//! [`KernelEvent`]: super::KernelEvent

mod message;
mod sockaddr;
pub mod translate;

pub use message::{Action, Form, Message, RouteMessage, header, message};
pub use translate::Translator;

/// A message that cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

type Parsed<T> = Result<T, Malformed>;

fn u8_at(bytes: &[u8], at: usize) -> Parsed<u8> {
    bytes.get(at).copied().ok_or(Malformed)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Parsed<[u8; N]> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Malformed)
}

fn u16_at(bytes: &[u8], at: usize) -> Parsed<u16> {
    array_at(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Parsed<u32> {
    array_at(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Parsed<u64> {
    array_at(bytes, at).map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests;
