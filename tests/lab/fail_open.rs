//! Not fail-open, under load: from the moment that the barrier stands, nothing that a rule denies and
//! nothing with an address from inside leaves by the port towards the world, whatever becomes of the
//! daemon. Seen outside, on the wire.

use std::{thread, time::Duration};

use nix::sys::signal::Signal;

use crate::{
    needs_lab,
    net::{Lab, Router, wait_for},
    outside::{Capture, private_or_to},
    sockets::Sender,
};

const DENIED: u16 = 7777;
const PERMITTED: u16 = 7778;

fn rules(more: &str) -> String {
    format!(
        "[[acl]]\nname = \"no\"\naction = \"deny\"\nprotocol = \"udp\"\nto_ports = [{DENIED}]\n{more}\n\
         [[masquerade]]\nout = \"p2\"\nfrom = \"10.0.1.0/24\"\n"
    )
}

fn has_barrier(lab: &Lab) -> bool {
    lab.router("nft list tables").ok().contains("sweepd")
}

/// Waits until packets are translated, and others are denied.
fn works(router: &Router) {
    let before = (router.verdict("forwarded"), router.verdict("denied"));
    wait_for("it forwards and denies", || {
        router.verdict("forwarded") > before.0 + 500 && router.verdict("denied") > before.1 + 500
    });
}

#[test]
fn nothing_denied_and_nothing_private_leaves_while_the_daemon_comes_and_goes_under_load() {
    needs_lab!();
    let lab = Lab::new(2);
    lab.router("sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'").ok();
    let seen = Capture::start(&lab, 2, &private_or_to(DENIED));
    let senders = [DENIED, PERMITTED].map(|port| Sender::flood(&lab, 1, "10.0.2.2", port));
    // What is to be seen if something is wrong: now the kernel forwards all of it.
    wait_for("the kernel forwards", || seen.count() > 100);

    lab.configure("", &rules(""));
    let mut router = lab.launch("");
    wait_for("the barrier stands", || has_barrier(&lab));
    // What was in a queue then has left long before the first port opens.
    seen.forget();
    wait_for("it forwards", || router.log().contains(": forwarding\n"));
    works(&router);
    let nothing = |when: &str| {
        let frames = seen.frames();
        assert!(frames.is_empty(), "{when}: {} frames, the first {:02x?}", frames.len(), &frames[0][..42]);
    };
    nothing("started");
    for round in 1..=2 {
        for n in 1..=2 {
            let more = format!("[[acl]]\nname = \"more-{round}-{n}\"\naction = \"permit\"");
            lab.configure("", &rules(&more));
            router.signal(Signal::SIGHUP);
            wait_for("the rules are read", || router.log().matches("configuration read again").count() >= n);
        }
        works(&router);
        nothing("reloaded");
        router.signal(Signal::SIGKILL);
        assert_eq!(router.wait(), None);
        wait_for("the ports are the kernel's", || !lab.has_program("p1") && !lab.has_program("p2"));
        thread::sleep(Duration::from_millis(100));
        nothing("killed");
        router = lab.start_with("", &rules(""));
        works(&router);
        nothing("started again");
    }
    assert!(senders.into_iter().all(|sender| sender.finish() > 1000));
    nothing("all the time");
    // The operator's word opens the kernel's forwarding again.
    router.stop();
    assert!(!has_barrier(&lab) && lab.reaches(1, "10.0.2.2"));
    wait_for("the capture sees it", || seen.count() > 0);
}
