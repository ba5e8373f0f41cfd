//! IPv4 options and fragmentation: RFC 791, RFC 1812 sections 4.2.2.7, 5.2.4.1 and 5.3.13.

use sweepd::forward::verdict::Verdict;

use crate::differences::{END_OF_OPTIONS, OPTION_LENGTH, OPTIONS_BLANKED, TIME_AT_ADDRESS};
use crate::packets::{Ip4, checksum};
use crate::router::{
    FAR, NARROW, NEAR, Router, alone, answer, but, dies, everywhere, from_router, pass, plain, router,
    to_router,
};

fn with(options: &[u8]) -> Ip4 {
    Ip4 { options: options.to_vec(), ..plain() }
}

/// Rule 19. Loose or strict, used up or not, alone or behind others: no forwarding, no answer.
#[test]
fn a_source_route_is_refused() {
    everywhere(|router| {
        for options in [
            &[131, 7, 4, 198, 51, 100, 9, 0][..],
            &[137, 7, 8, 198, 51, 100, 9, 0],
            &[148, 4, 0, 0, 1, 131, 7, 4, 10, 0, 1, 9],
        ] {
            dies(router, 0, &to_router(0, &with(options).build()), Verdict::SourceRoute);
            dies(router, 0, &to_router(0, &with(options).ttl(1).build()), Verdict::SourceRoute);
        }
    });
}

/// Rule 19. Router alert, security, and types that nobody knows.
#[test]
fn unknown_options_travel_on_untouched() {
    everywhere(|router| {
        for options in [
            &[148, 4, 0, 0][..],
            &[1, 1, 1, 1],
            &[130, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0],
            &[94, 6, 1, 2, 3, 4, 0, 0],
            &[222, 40, 222, 222].repeat(10),
        ] {
            travel_on(router, options);
        }
        but(router, &END_OF_OPTIONS, |router| travel_on(router, &[0, 9, 9, 9]));
    });
}

fn travel_on(router: &mut dyn Router, options: &[u8]) {
    let packet = with(options);
    assert_eq!(pass(router, &packet.build()), [(1, from_router(1, &packet.clone().ttl(63).build()))]);
}

/// Rule 19. Record route gets the address of the way out, until it is full.
#[test]
fn the_way_is_recorded_where_a_packet_asks_for_it() {
    everywhere(|router| {
        for (before, after) in [
            ([7, 7, 4, 0, 0, 0, 0, 0], [7, 7, 8, 10, 0, 1, 1, 0]),
            ([7, 7, 8, 10, 9, 9, 9, 0], [7, 7, 8, 10, 9, 9, 9, 0]),
        ] {
            let expected = with(&after).ttl(63).build();
            assert_eq!(pass(router, &with(&before).build()), [(1, from_router(1, &expected))]);
        }
    });
}

/// Rule 19. Timestamp gets the time, behind the address if it asks for that too.
#[test]
fn the_time_is_entered_where_a_packet_asks_for_it() {
    everywhere(|router| {
        let options = [68, 20, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let out = pass(router, &with(&options).build());
        let header = &out[0].1[14..54];
        assert_eq!(checksum(header), 0);
        assert_eq!(header[20..24], [68, 20, 13, 1]);
        but(router, &TIME_AT_ADDRESS, |_| assert_eq!(header[24..28], [10, 0, 1, 1]));
        let entered = u32::from_be_bytes(header[28..32].try_into().unwrap());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        let age = (now % 86_400_000 + 86_400_000 - u128::from(entered)) % 86_400_000;
        assert!(age < 60_000, "{age} ms");
        assert_eq!(header[32..40], [0; 8]);
    });
}

/// Rule 19. An option that cannot be gets a parameter problem that points at it.
#[test]
fn a_malformed_option_is_answered_with_where_it_is() {
    everywhere(|router| {
        for (options, pointer) in [([148, 1, 0, 0], 21), ([1, 1, 148, 9], 23)] {
            but(router, &OPTION_LENGTH, |router| points_at(router, options, pointer));
        }
        for (options, pointer) in [([7, 4, 4, 0], 22), ([1, 7, 3, 1], 23), ([68, 4, 5, 0xf0], 23)] {
            points_at(router, options, pointer);
        }
        router.ended(&[("bad_header", 5)]);
    });
}

fn points_at(router: &mut dyn Router, options: [u8; 4], pointer: u32) {
    let packet = with(&options).build();
    let said = answer(router, &packet).unwrap();
    assert_eq!((said.says(), said.rest >> 24), ((12, 0), pointer), "{options:?}");
    assert_eq!(said.quoted, packet);
}

/// The data of fragments put together, which must be in order and whole.
fn together(fragments: &[(usize, Vec<u8>)], mtu: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for (n, (port, frame)) in fragments.iter().enumerate() {
        let packet = &frame[14..];
        let header = usize::from(packet[0] & 15) * 4;
        assert_eq!((*port, checksum(&packet[..header]), packet[8]), (2, 0, 63));
        assert!(
            packet.len() <= mtu && usize::from(u16::from_be_bytes([packet[2], packet[3]])) == packet.len()
        );
        let word = u16::from_be_bytes([packet[6], packet[7]]);
        let last = n + 1 == fragments.len();
        assert_eq!((usize::from(word & 0x1fff) * 8, word & 0x2000 == 0), (data.len(), last));
        data.extend(&packet[header..]);
        assert!(last || data.len().is_multiple_of(8));
    }
    data
}

/// Rule 20. Offsets are multiples of 8, all but the last have MF, and together they are the packet.
#[test]
fn a_packet_too_long_leaves_in_fragments_that_make_it_up() {
    everywhere(|router| {
        for len in [573, 574, 1100, 1160, 1400] {
            let mut packet = Ip4::udp(NEAR, NARROW, len);
            let out = pass(router, &packet.build());
            assert!(out.len() >= 2);
            assert_eq!(together(&out, 600), packet.payload);
            packet.options = vec![7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0];
            let out = pass(router, &packet.build());
            assert_eq!(together(&out, 600), packet.payload);
            assert_eq!(out[0].1[34..46], [7, 7, 8, 10, 0, 2, 1, 148, 4, 0, 0, 0], "all options in the first");
            but(router, &OPTIONS_BLANKED, |_| {
                assert_eq!(out[1].1[34..38], [148, 4, 0, 0], "those with the copy bit in the others");
            });
        }
        router.ended(&[("fragmented", 10)]);
    });
}

/// Rule 20. It is answered instead.
#[test]
fn a_packet_with_df_is_never_fragmented() {
    everywhere(|router| {
        let said = answer(router, &Ip4::udp(NEAR, NARROW, 1400).dont_fragment().build());
        assert_eq!(said.map(|a| a.says()), Some((3, 4)));
        router.ended(&[("too_big", 1)]);
    });
}

/// Rule 20. Where the ring has not room for all fragments, none is sent.
#[test]
fn a_packet_leaves_in_all_its_fragments_or_not_at_all() {
    alone("interfaces have larger rings, which nothing keeps full");
    let mut tube = router();
    // 63 fit the far end's ring and 63 more the ring before it: 42 packets of 3 fragments.
    for _ in 0..50 {
        tube.inject(0, &to_router(0, &Ip4::udp(NEAR, NARROW, 1400).build()));
        tube.settle();
        tube.check();
    }
    let mut offsets = Vec::new();
    loop {
        let frames = tube.arrived(2);
        if frames.is_empty() {
            break;
        }
        offsets.extend(frames.iter().map(|f| u16::from_be_bytes([f[20], f[21]]) & 0x1fff));
        tube.inject(0, &to_router(0, &Ip4::udp(NEAR, "10.0.0.1", 0).build()));
        tube.settle();
    }
    assert_eq!(offsets.len(), 126);
    assert!(offsets.chunks(3).all(|three| three == [0, 72, 144]), "{offsets:?}");
    assert_eq!((tube.count(Verdict::Fragmented), tube.count(Verdict::TxFull)), (42, 8));
    assert_eq!(tube.stats.snapshot()[2].tx_dropped, 8);
    dies(&mut tube, 0, &to_router(0, &Ip4::udp("10.0.1.1", FAR, 1).build()), Verdict::Martian);
}
