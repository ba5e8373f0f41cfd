//! Messages that no kernel sends.

use proptest::{collection::vec, prelude::*};

use super::{super::*, *};
use crate::control::kernel::Part;

/// One whole message of every form.
fn whole() -> Vec<Vec<u8>> {
    let to = |built: Build| built.with(DST, &ip("10.1.0.0")).with(GW, &ip("192.0.2.1"));
    vec![
        to(Build::route(ADD, 2, UP | GATEWAY | DONE)).with(MASK, &mask4(16)).done(),
        to(Build::route(CHANGE, 2, UP | GATEWAY | DONE)).with(MASK, &[5, 0, 0, 0, 255]).done(),
        to(Build::route(GET, 2, UP | GATEWAY)).with(MASK, &mask4(16)).with(IFA, &ip("10.9.9.9")).done(),
        Build::route(GET, 2, UP | HOST | LLDATA)
            .with(DST, &ip("fe80::1"))
            .with(GW, &link(2, "", &MAC))
            .done(),
        Build::link_news(2, 1, 2, 1500).done(),
        Build::link_listed(2, 1, 2, 1500).with(IFP, &link(2, "em0", &MAC)).done(),
        Build::address_news(NEWADDR, 2).with(MASK, &mask4(24)).with(IFA, &ip("192.0.2.9")).done(),
        Build::address_listed(2).with(MASK, &mask6(64)).with(IFA, &ip("2001:db8::9")).done(),
        Build::announcement(2, "em0", 0),
    ]
}

#[test]
fn a_message_cut_anywhere_is_malformed_when_it_says_its_whole_length() {
    for bytes in whole() {
        for len in 0..bytes.len() {
            assert_eq!(message(&bytes[..len], Form::News), Err(Malformed), "{len} of {bytes:?}");
            assert_eq!(message(&bytes[..len], Form::Listed), Err(Malformed), "{len} of {bytes:?}");
        }
    }
}

#[test]
fn an_address_longer_than_the_message_is_malformed() {
    let mut bytes = whole().remove(0);
    bytes[152] = 200;
    assert_eq!(message(&bytes, Form::News), Err(Malformed));
}

#[test]
fn what_does_not_parse_is_counted_and_the_next_is_taken() {
    let mut all = whole();
    let good = all.remove(2);
    let mut bad = good.clone();
    bad[152] = 200;
    let bytes = [good.clone(), bad, good].concat();
    let (mut translator, mut out) = (Translator::new(true), Vec::new());
    translator.begin(Part::Routes4, &mut out);
    assert_eq!(translator.listed(Part::Routes4, &bytes, 100, &mut out), Ok(bytes.len()));
    translator.end(Part::Routes4, true, &mut out);
    assert_eq!((translator.unparsed(), out.len()), (1, 3));
    translator.news(&[1, 2, 3], &mut out);
    assert_eq!((translator.unparsed(), out.len()), (2, 3));
}

#[test]
fn a_listing_whose_lengths_lead_nowhere_ends() {
    let mut bytes = whole().remove(2);
    bytes[..2].copy_from_slice(&0u16.to_ne_bytes());
    let mut out = Vec::new();
    assert_eq!(Translator::new(true).listed(Part::Routes4, &bytes, 100, &mut out), Err(Malformed));
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..400), parts in vec(0..6usize, 4)) {
        let (mut translator, mut out) = (Translator::new(true), Vec::new());
        translator.news(&bytes, &mut out);
        for part in parts {
            let _ = translator.listed(Part::ALL[part], &bytes, 100, &mut out);
        }
    }

    #[test]
    fn damaged_messages_do_no_harm(
        which in 0..9usize,
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = whole().remove(which);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(keep.index(bytes.len()) + 1);
        // A plausible length, so that the damage gets further in.
        if let Some(field) = bytes.get(..4).map(|b| [b[2], b[3]]) {
            let len = bytes.len() as u16;
            bytes[..2].copy_from_slice(&len.to_ne_bytes());
            (bytes[2], bytes[3]) = (5, field[1]);
        }
        let (mut translator, mut out) = (Translator::new(true), Vec::new());
        for _ in 0..2 {
            translator.news(&bytes, &mut out);
            for part in Part::ALL {
                let _ = translator.listed(part, &bytes, 100, &mut out);
            }
        }
    }
}
