use serde_json::json;

use super::*;

fn names(names: &[(&str, Option<PortId>)]) -> Vec<Named> {
    names.iter().map(|(name, parent)| ((*name).to_owned(), *parent)).collect()
}

fn plan(captures: &Captures, request: Value) -> Result<Plan, Refused> {
    let ports = names(&[("wan", None), ("lan", None), ("", None), ("wan.100", Some(0))]);
    let stats = Arc::new(StatsFile::anonymous(&["wan".into(), "lan".into()], 1).unwrap());
    captures.plan(request.as_object().unwrap(), &ports, Vec::new(), stats)
}

fn refused(request: Value) -> String {
    match plan(&Captures::default(), request) {
        Err(Refused::Usage(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_port_is_captured_with_its_sub_ports() {
    let captures = Captures::default();
    let of = |name: &str| plan(&captures, json!({ "port": name })).unwrap().wanted.ports.clone().unwrap();
    assert_eq!(*of("wan"), [true, false, false, true]);
    assert_eq!(*of("wan.100"), [false, false, false, true]);
    assert_eq!(plan(&captures, json!({})).unwrap().wanted.ports, None);
}

#[test]
fn names_that_are_not_there_are_refused_with_those_that_are() {
    assert_eq!(
        refused(json!({ "port": "wna" })),
        "there is no port called \"wna\"; did you mean \"wan\"? there are wan, lan, wan.100"
    );
    assert_eq!(
        refused(json!({ "port": "eth7" })),
        "there is no port called \"eth7\"; there are wan, lan, wan.100"
    );
    assert_eq!(
        refused(json!({ "verdicts": ["no-route"] })),
        "there is no verdict called \"no-route\"; did you mean \"no_route\"?"
    );
    assert!(refused(json!({ "verdicts": ["?"] })).ends_with("worker_fault, held, in_transit"));
    for request in
        [json!({ "count": 0 }), json!({ "snap": "x" }), json!({ "port": 7 }), json!({ "port": "" })]
    {
        refused(request);
    }
}

#[test]
fn there_is_one_capture_at_a_time() {
    let captures = Captures::default();
    let first = plan(&captures, json!({ "port": "lan" })).unwrap();
    let Err(Refused::Busy(error)) = plan(&captures, json!({})) else { panic!() };
    assert_eq!(error, "port lan is being captured already; end that first");
    drop(first);
    plan(&captures, json!({})).unwrap();
}

#[test]
fn a_packet_that_ends_elsewhere_is_put_together() {
    let (mut client, stream) = UnixStream::pair().unwrap();
    let stats = Arc::new(StatsFile::anonymous(&["wan".into(), "lan".into()], 1).unwrap());
    let (producer, consumer) = ring::ring(1 << 16, 2);
    let mut session = Session {
        stream,
        out: Vec::new(),
        sent: 0,
        writer: Writer::new(100).unwrap(),
        rings: vec![consumer],
        wanted: Arc::new(Wanted { ports: None, ends: u64::MAX }),
        at_once: 0,
        left: Some(4),
        stats,
        pending: HashMap::new(),
        early: Default::default(),
        emptied: true,
    };
    drop(producer);
    let verdict = |name: &str| End::all().find(|end| end.name() == name).unwrap();
    let told = |later, name: &str, id, time| Told {
        later,
        end: verdict(name),
        came_in: 0,
        leaves_by: later.then_some(1),
        len: 60,
        id,
        time,
    };
    // The end before the packet, and behind it; one that waited for a way out and did not get there;
    // and one whose end never comes.
    for told in [
        told(true, "tx_full", 7, 9),
        told(false, "in_transit", 7, 8),
        told(false, "held", 8, 1_000_000),
        told(true, "forwarded", 8, 3_500_000),
        Told { leaves_by: Some(1), ..told(false, "held", 10, 1_000_000) },
        Told { leaves_by: None, ..told(true, "neighbor_failed", 10, 2_000_000) },
        told(false, "held", 9, 20),
    ] {
        assert!(session.take(told, b"abc").is_ok());
    }
    assert!(session.finish().is_ok());
    assert_eq!(session.left, Some(0));
    drop(session);
    let mut text = Vec::new();
    client.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    for comment in [
        "tx_full, in wan, out lan: The transmit ring",
        "forwarded after 2.500 ms held, in wan, out lan: Sent on",
        "neighbor_failed after 1.000 ms held, in wan, out lan: The next",
        "held, in wan, out -: Held for a neighbour",
    ] {
        assert!(text.contains(comment), "{text}");
    }
}
