//! Clients of every kind, against a real socket.

use std::{
    io::{BufRead, BufReader},
    sync::Arc,
};

use crossbeam_channel::unbounded;
use netmap::{Losses, device::PortControl};
use serde_json::Value;

use super::*;
use crate::{
    control::{
        Keeper, KeeperConfig, KeeperPort,
        capture::Captures,
        diff::Comparison,
        kernel::RouteKind,
        rib::{PortSpec, StaticHop, StaticNeighbor, StaticRoute},
    },
    forward::verdict::Verdict,
    stats::file::StatsFile,
    tables::{Tables, publish::Publisher},
};

struct Passed;

impl PortControl for Passed {
    fn losses(&mut self) -> Losses {
        Losses { passed_up: 7, passed_up_bytes: 700, rx_dropped: 3, ..Losses::default() }
    }
}

struct Rig {
    socket: Option<ControlSocket>,
    _comparison: Comparison,
    _keeper: Keeper,
    dir: tempfile::TempDir,
}

/// A keeper with one port of the built-in host, and `routes` routes beside its own.
fn rig(routes: u32) -> Rig {
    let stats = Arc::new(StatsFile::anonymous(&["a".into()], 1).unwrap());
    let spec = PortSpec {
        name: "a".into(),
        device_mac: [2, 0, 0, 0, 0, 1],
        max_len: 2000,
        addresses: Some(vec!["10.0.0.1/24".parse().unwrap()]),
        builtin_host: true,
        ..PortSpec::default()
    };
    let port = KeeperPort {
        spec,
        device: "pipe:a".into(),
        mode: "pipe".into(),
        rings: 1,
        control: Box::new(Passed),
        block: stats.block(stats.keeper(), 0),
    };
    let mut config = KeeperConfig::new(vec![port]);
    let via = |gateway: &str| vec![StaticHop { gateway: gateway.parse().ok(), port: None, weight: 1 }];
    config.routes = (0..routes)
        .map(|n| StaticRoute {
            to: format!("{}/32", std::net::Ipv4Addr::from(0x6400_0000 + n)).parse().unwrap(),
            kind: RouteKind::Unicast,
            hops: via("10.0.0.2"),
        })
        .collect();
    config.neighbors =
        vec![StaticNeighbor { port: 0, address: "10.0.0.2".parse().unwrap(), mac: [2, 0, 0, 0, 0, 0x99] }];
    let (publisher, _) = Publisher::try_new(Tables::new, 0).unwrap();
    let keeper = Keeper::start(config, publisher, unbounded().1, Vec::new(), unbounded().0).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bound = Bound::new(&dir.path().join(CONTROL_SOCKET), Access::default()).unwrap();
    let comparison = Comparison::start(keeper.queries()).unwrap();
    let differ = comparison.differ();
    let socket = bound
        .serve(Answerer {
            queries: keeper.queries(),
            stats,
            reloads: None,
            differ,
            captures: Captures::default(),
            workers: Vec::new(),
            health: Box::new(|| (0, 0)),
        })
        .unwrap();
    Rig { socket: Some(socket), _comparison: comparison, _keeper: keeper, dir }
}

impl Rig {
    fn path(&self) -> PathBuf {
        self.dir.path().join(CONTROL_SOCKET)
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn ask(&self, line: &str) -> Value {
        let mut stream = self.connect();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        read(&stream)
    }

    fn show(&self, what: &str) -> Value {
        let answer = self.ask(&format!(r#"{{"version":1,"command":"show","what":"{what}"}}"#));
        assert_eq!(answer["ok"], true, "{answer}");
        answer["data"].clone()
    }
}

fn read(stream: &UnixStream) -> Value {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.ends_with('\n'), "{line:?}");
    serde_json::from_str(&line).unwrap()
}

#[test]
fn everything_that_can_be_shown_is_shown() {
    let rig = rig(3);
    let tables = rig.show("tables");
    assert_eq!(tables["adjacencies"], 2);
    assert_eq!(tables["neighbors"], 1);
    let neighbors = rig.show("neighbors");
    assert_eq!(neighbors[0]["mac"], "02:00:00:00:00:99");
    assert_eq!(neighbors[0]["source"], "static");
    let routes = rig.show("routes");
    let to: Vec<_> = routes.as_array().unwrap().iter().map(|r| r["to"].as_str().unwrap()).collect();
    assert_eq!(
        to,
        ["10.0.0.0/24", "10.0.0.1/32", "10.0.0.255/32", "100.0.0.0/32", "100.0.0.1/32", "100.0.0.2/32"]
    );
    assert_eq!(routes[0]["source"], "connected");
    assert_eq!(routes[0]["via"][0]["port"], "a");
    assert_eq!(routes[1]["type"], "local");
    assert_eq!(routes[3]["via"][0]["gateway"], "10.0.0.2");
    // The devices' losses come in after a moment.
    let start = Instant::now();
    while rig.show("ports")[0]["rx_packets"] != 7 {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let ports = rig.show("ports");
    assert_eq!(
        (&ports[0]["rx_dropped"], &ports[0]["mtu"], &ports[0]["up"]),
        (&3.into(), &1500.into(), &true.into())
    );
    let verdicts = rig.show("verdicts");
    assert_eq!(verdicts["host"], 7);
    assert_eq!(verdicts.as_object().unwrap().len(), Verdict::ALL.len() + 2);
}

#[test]
fn a_lookup_tells_what_would_become_of_a_packet() {
    let rig = rig(3);
    let ask = |address: &str| {
        rig.ask(&format!(r#"{{"version":1,"command":"show","what":"routes","address":"{address}"}}"#))["data"]
            .clone()
    };
    let found = ask("100.0.0.1");
    assert_eq!(found["route"]["to"], "100.0.0.1/32");
    assert_eq!((&found["next_hop"], &found["mac"]), (&"10.0.0.2".into(), &"02:00:00:00:00:99".into()));
    assert_eq!((&found["port"], &found["verdict"]), (&"a".into(), &"forwarded".into()));
    let neighbor = ask("10.0.0.2");
    assert_eq!(
        (&neighbor["route"]["to"], &neighbor["next_hop"]),
        (&"10.0.0.0/24".into(), &"10.0.0.2".into())
    );
    assert_eq!(ask("10.0.0.1")["verdict"], "host");
    let none = ask("2001:db8::1");
    assert_eq!((&none["route"], &none["verdict"]), (&Value::Null, &"no_route".into()));
}

#[test]
fn a_long_list_is_whole() {
    let rig = rig(20_000);
    let routes = rig.show("routes");
    let routes = routes.as_array().unwrap();
    assert_eq!(routes.len(), 20_003);
    let to: std::collections::BTreeSet<_> = routes.iter().map(|r| r["to"].as_str().unwrap()).collect();
    assert_eq!(to.len(), routes.len());
}

#[test]
fn what_is_wrong_is_said_and_the_connection_goes_on_if_it_can() {
    let rig = rig(0);
    let mut stream = rig.connect();
    let line = |text: &str| format!("{text}\n");
    for request in [
        r#"{"version":1,"command":"show","what":"prots"}"#,
        r#"{"version":1,"command":"show"}"#,
        r#"{"version":1,"command":"dance"}"#,
        r#"{"version":1,"command":"reload"}"#,
        r#"{"version":1,"command":"show","what":"flows","filter":"everything"}"#,
        r#"{"version":1,"command":"show","what":"routes","address":"nowhere"}"#,
    ] {
        stream.write_all(line(request).as_bytes()).unwrap();
        let answer = read(&stream);
        assert_eq!(answer["ok"], false, "{request}");
        assert!(answer["error"].as_str().unwrap().len() > 10);
    }
    for request in ["garbage", "[1,2]", r#"{"version":2,"command":"show","what":"ports"}"#, "\u{0}\u{1}"] {
        let mut stream = rig.connect();
        stream.write_all(line(request).as_bytes()).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.lines().count(), 1, "answered once, then closed: {request}");
        assert!(rest.contains("\"ok\":false"));
    }
}

#[test]
fn requests_may_come_in_pieces_and_in_heaps() {
    let rig = rig(0);
    let request = b"{\"version\":1,\"command\":\"show\",\"what\":\"tables\"}\n";
    let mut stream = rig.connect();
    for byte in request {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(read(&stream)["ok"], true);
    stream.write_all(&request.repeat(100)).unwrap();
    let mut lines = BufReader::new(&stream).lines();
    for _ in 0..100 {
        assert!(lines.next().unwrap().unwrap().contains("\"ok\":true"));
    }
}

#[test]
fn hostile_clients_harm_nobody() {
    let rig = rig(20_000);
    // A line without an end.
    let mut endless = rig.connect();
    let _ = endless.write_all(&vec![b'x'; 4 * LINE_MAX]);
    let mut answer = String::new();
    let _ = endless.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.contains("at most"), "{answer}");
    // Requests for much, and nobody who takes the answers.
    let mut deaf = rig.connect();
    deaf.set_nonblocking(true).unwrap();
    let _ = deaf.write(&b"{\"version\":1,\"command\":\"show\",\"what\":\"routes\"}\n".repeat(1000));
    // A hundred clients that say nothing, or half of something: the oldest make room.
    let mut idle: Vec<UnixStream> = (0..100).map(|_| rig.connect()).collect();
    idle.iter_mut().step_by(2).for_each(|stream| stream.write_all(b"{\"version").unwrap_or_default());
    let mut stream = rig.connect();
    stream.write_all(b"{\"version\":1,\"command\":\"show\",\"what\":\"tables\"}\n").unwrap();
    assert_eq!(read(&stream)["ok"], true);
    drop(idle);
    drop(deaf);
    let start = Instant::now();
    loop {
        let mut stream = rig.connect();
        let _ = stream.write_all(b"{\"version\":1,\"command\":\"show\",\"what\":\"tables\"}\n");
        if read(&stream)["ok"] == true {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_daemon_that_was_killed_a_moment_ago_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(CONTROL_SOCKET);
    let last = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            // Its name stays, as after a kill.
            drop(last);
        });
        Bound::new(&path, Access::default()).unwrap();
    });
}

#[test]
fn only_the_owner_may_connect_and_a_living_daemon_is_not_disturbed() {
    let mut rig = rig(0);
    let mode = fs::metadata(rig.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let Err(error) = Bound::new(&rig.path(), Access::default()) else { panic!("it is taken") };
    assert!(matches!(error, SocketError::Running(..)));
    if cfg!(target_os = "linux") {
        assert!(error.to_string().contains(&format!("running, process {};", std::process::id())), "{error}");
    }
    assert_eq!(rig.show("tables")["fib6_prefixes"], 4);
    assert_eq!(rig.socket.as_ref().unwrap().path(), rig.path());
    drop(rig.socket.take());
    assert!(!rig.path().exists(), "nothing is left behind");
}

#[test]
fn a_dead_daemons_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(CONTROL_SOCKET);
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let bound = Bound::new(&path, Access::default()).unwrap();
    assert!(UnixStream::connect(&path).is_ok());
    drop(bound);
    fs::write(&path, "precious").unwrap();
    assert!(matches!(Bound::new(&path, Access::default()), Err(SocketError::InTheWay(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn what_takes_its_time_keeps_the_order_and_holds_up_nobody_else() {
    let rig = rig(3);
    let mut stream = rig.connect();
    let compare = r#"{"version":1,"command":"show","what":"routes","diff":true}"#;
    let tables = r#"{"version":1,"command":"show","what":"tables"}"#;
    // Others hang up while the same is done for them.
    for _ in 0..20 {
        rig.connect().write_all(format!("{compare}\n").as_bytes()).unwrap();
    }
    stream.write_all(format!("{compare}\n{tables}\n{compare}\n").as_bytes()).unwrap();
    assert!(rig.show("tables")["generation"].is_u64());
    let mut lines = BufReader::new(stream).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["data"], serde_json::json!([]));
    assert!(next()["data"]["generation"].is_u64());
    assert_eq!(next()["data"], serde_json::json!([]));
}

#[test]
fn the_socket_is_given_to_whom_the_configuration_names() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(CONTROL_SOCKET);
    let shape = |access| {
        let bound = Bound::new(&path, access).unwrap();
        let metadata = fs::symlink_metadata(&path).unwrap();
        drop(bound);
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    let (me, my_group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    assert_eq!(shape(Access::default()), (me.as_raw(), my_group.as_raw(), 0o600));
    let mine = Access { owner: Some(me), group: Some(my_group) };
    assert_eq!(shape(mine), (me.as_raw(), my_group.as_raw(), 0o660));
    let others = Access { owner: Some(Uid::from_raw(7)), group: Some(Gid::from_raw(8)) };
    if me.is_root() {
        assert_eq!(shape(others), (7, 8, 0o660));
    } else {
        assert!(matches!(Bound::new(&path, others), Err(SocketError::Owner { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something is left behind");
    }
}

#[test]
fn what_was_killed_in_the_middle_is_cleared_away_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let here = |name: String| dir.path().join(name);
    // No process has that number: it is above every limit.
    let dead = here("control.2147483647.new".into());
    let others = [here(format!("control.{}.new", 1)), here("control.new".into()), here("stats.5.new".into())];
    for path in others.iter().chain([&dead]) {
        fs::write(path, "").unwrap();
    }
    let _bound = Bound::new(&dir.path().join("control.sock"), Access::default()).unwrap();
    assert!(!dead.exists());
    assert!(others.iter().all(|path| path.exists()));
}
