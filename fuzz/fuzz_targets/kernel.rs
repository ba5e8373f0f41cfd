//! Any bytes as what a kernel says: rtnetlink's datagrams, and those of FreeBSD's routing socket.

use sweepd::control::kernel::{
    parse,
    route_socket::{self, Form, Translator},
};

/// Messages one after the other, as long as their headers say.
pub fn netlink(input: &[u8]) {
    let Some((table, mut bytes)) = input.split_first() else { return };
    let table = (*table != 0).then_some(u32::from(*table));
    while let Ok(header) = parse::header(bytes) {
        assert!(header.len >= parse::HEADER && header.len <= bytes.len());
        let _ = parse::message(header, &bytes[parse::HEADER..header.len], table);
        bytes = &bytes[header.len.next_multiple_of(4).min(bytes.len())..];
    }
}

/// News and listings in turn, to a translator that remembers.
pub fn route_socket(input: &[u8]) {
    let Some((routes, mut bytes)) = input.split_first() else { return };
    let mut translator = Translator::new(routes & 1 == 0);
    let mut reports = Vec::new();
    while let Ok((len, _)) = route_socket::header(bytes) {
        let form = if routes & 2 == 0 { Form::News } else { Form::Listed };
        let _ = route_socket::message(&bytes[..len], form);
        translator.news(&bytes[..len], &mut reports);
        bytes = &bytes[len..];
    }
    let _ = (translator.take_wanted(), translator.unparsed());
}
