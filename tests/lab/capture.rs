//! `sweepd capture` against a router that forwards: what it writes is read by others, and how it ends,
//! however that is, is the daemon's and forwarding's least concern.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    net::UdpSocket,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pcap_file::pcapng::{Block, PcapNgReader, blocks::enhanced_packet::EnhancedPacketOption};

use crate::{
    needs_lab,
    net::{Lab, SOON, SWEEPD, is_there, sh, wait_for},
};

/// A capture under way.
struct Capture {
    child: Child,
    said: PathBuf,
}

impl Capture {
    /// Starts one, and waits until it has begun.
    #[track_caller]
    fn start(lab: &Lab, name: &str, args: &str) -> Self {
        let [out, said] = ["out", "err"].map(|kind| lab.dir.path().join(format!("{name}.{kind}")));
        let mut command = Command::new(SWEEPD);
        command.arg("capture").args(args.split_whitespace()).arg("--config");
        let child = command
            .arg(lab.dir.path().join("sweepd.toml"))
            .stdin(Stdio::null())
            .stdout(File::create(out).unwrap())
            .stderr(File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let mut capture = Self { child, said };
        wait_for("the capture begins", || {
            assert!(capture.child.try_wait().unwrap().is_none(), "it ended: {}", capture.said());
            capture.said().contains("Ctrl-C ends it")
        });
        capture
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end; gives how many packets it says it has captured, and how many were lost.
    #[track_caller]
    fn wait(&mut self) -> (u64, u64) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < SOON, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = self.said();
        assert!(status.success(), "{status}: {said}");
        let line = said.lines().last().unwrap();
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The interfaces' names, and of each packet the comment and the frame.
fn read(path: &Path) -> (Vec<String>, Vec<(String, Vec<u8>)>) {
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            let comment = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Comment(comment) => Some(comment.to_string()),
                _ => None,
            });
            packets.push((comment.unwrap(), packet.data.to_vec()));
        }
    }
    let names = reader.interfaces().iter().map(|interface| format!("{:?}", interface.options[0]));
    (names.collect(), packets)
}

#[test]
fn others_read_a_capture_and_find_why_each_packet_died() {
    needs_lab!();
    // With two workers, one of which has no ring of the second port's.
    let lab = Lab::with_queues(&[2, 1]);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cpus = if cores > 1 { "cpus = [0, 1]\n" } else { "" };
    let router = lab.start_with(cpus, "[[route]]\nto = \"192.0.2.0/24\"\ntype = \"blackhole\"\n");
    assert!(lab.reaches(1, "10.0.2.2"));
    let file = lab.dir.path().join("all.pcapng");
    let mut capture = Capture::start(&lab, "all", &format!("p1 -w {}", file.display()));
    lab.host(1, "ping -c 4 -i 0.1 10.0.2.2").ok();
    lab.host(1, "ping -c 2 -i 0.1 -W 1 203.0.113.9");
    lab.host(1, "ping -c 2 -i 0.1 -W 1 192.0.2.9");
    lab.host(1, "ping -c 1 -t 1 -W 1 10.0.2.2");
    lab.host(1, "ping -c 1 -W 5 10.0.2.99");
    capture.signal(Signal::SIGINT);
    let (captured, lost) = capture.wait();
    assert_eq!(lost, 0);
    let (interfaces, packets) = read(&file);
    assert_eq!(interfaces, ["IfName(\"p1\")", "IfName(\"p2\")"]);
    assert_eq!(packets.len() as u64, captured);
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    for (comment, _) in &packets {
        let (end, ways) = comment.split_once(", in ").unwrap();
        let (ways, _) = ways.split_once(": ").unwrap();
        *ends.entry(format!("{} {ways}", end.split(' ').next().unwrap())).or_default() += 1;
    }
    for (end, count) in [
        ("forwarded p1, out p2", 4),
        ("forwarded p2, out p1", 4),
        ("no_route p1, out -", 2),
        ("blackhole p1, out -", 2),
        ("ttl_expired p1, out -", 1),
        ("neighbor_failed p1, out p2", 1),
    ] {
        assert_eq!(ends.get(end), Some(&count), "{end}: {ends:?}");
    }
    // As it came: with the TTL that it was sent with.
    let request = packets.iter().find(|(comment, _)| comment.starts_with("forwarded, in p1")).unwrap();
    assert_eq!(request.1[22], 64);
    if is_there("tcpdump") {
        let text = sh(&format!("tcpdump -n -r {}", file.display())).ok();
        assert_eq!(text.matches(" > 203.0.113.9: ICMP echo request").count(), 2, "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(" IP ")).count() as u64, captured, "{text}");
    } else {
        eprintln!("skipped: tcpdump as the reader, for want of Debian's package tcpdump");
    }
    router.adds_up();
    router.stop();
}

#[test]
fn a_capture_on_the_terminal_shows_what_was_asked_for_and_ends_by_itself() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    let mut capture = Capture::start(&lab, "lines", "--verdict no_route,denied -c 3 -s 40");
    lab.host(1, "ping -c 1 -W 1 10.0.2.2").ok();
    lab.host(1, "ping -c 4 -i 0.1 -W 1 203.0.113.9");
    assert_eq!(capture.wait(), (3, 0));
    let text = fs::read_to_string(lab.dir.path().join("lines.out")).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    for line in text.lines() {
        assert!(
            line.contains("  p1 > -          no_route           98  10.0.1.2 > 203.0.113.9 icmp echo"),
            "{text}"
        );
    }
    let refused = |args: &str| {
        let config = lab.dir.path().join("sweepd.toml");
        sh(&format!("{SWEEPD} capture {args} --config {}", config.display()))
    };
    let ran = refused("q1");
    assert_eq!((ran.code, ran.text.lines().count()), (2, 1), "{ran:?}");
    assert!(
        ran.text.contains("there is no port called \"q1\"; did you mean \"p1\"? there are p1, p2"),
        "{ran:?}"
    );
    let ran = refused("p1 --verdict noroute");
    assert!(ran.code == 2 && ran.text.contains("did you mean \"no_route\"?"), "{ran:?}");
    router.stop();
}

#[test]
fn a_full_disk_ends_a_capture_and_is_named() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    let _pinging = lab.host_starts(1, "ping -i 0.1 10.0.2.2");
    let config = lab.dir.path().join("sweepd.toml");
    let ran = sh(&format!("timeout 10 {SWEEPD} capture -w /dev/full --config {}", config.display()));
    assert_eq!(ran.code, 1, "{ran:?}");
    let last = ran.text.lines().last().unwrap();
    assert_eq!(last, "sweepd: cannot write the capture: No space left on device", "{ran:?}");
    router.stop();
}

#[test]
fn a_killed_capture_is_over_and_meanwhile_there_is_no_second_one() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    let capture = Capture::start(&lab, "first", "p1");
    let config = lab.dir.path().join("sweepd.toml");
    let second = format!("timeout 10 {SWEEPD} capture p2 -c 1 --config {}", config.display());
    let ran = sh(&second);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(ran.text, "sweepd: port p1 is being captured already; end that first\n");
    capture.signal(Signal::SIGKILL);
    let _pinging = lab.host_starts(1, "ping -i 0.1 10.0.2.2");
    wait_for("another can begin", || sh(&second).code == 0);
    router.adds_up();
    router.stop();
}

#[test]
fn a_capture_that_nobody_reads_loses_copies_and_no_packets() {
    needs_lab!();
    let lab = Lab::new(2);
    let router = lab.start();
    assert!(lab.reaches(1, "10.0.2.2"));
    let before = router.verdict("forwarded");
    let mut capture = Capture::start(&lab, "stopped", "p1 -w /dev/null");
    capture.signal(Signal::SIGSTOP);
    // More than the rings, the connection and what the daemon keeps for it can take.
    lab.in_host(1, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for n in 0..7000u32 {
            let _ = socket.send_to(&[7; 1400], "10.0.2.2:9");
            if n % 32 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    router.adds_up();
    let forwarded = router.verdict("forwarded") - before;
    assert!(forwarded > 6000, "{forwarded}");
    capture.signal(Signal::SIGCONT);
    capture.signal(Signal::SIGINT);
    let (captured, lost) = capture.wait();
    assert!(lost > 0 && captured > 0, "{captured} captured, {lost} lost");
    let forwarded = router.verdict("forwarded") - before;
    assert_eq!(captured + lost, forwarded);
    assert!(lab.reaches(1, "10.0.2.2"));
    // And one that the daemon's end finds still there.
    let mut capture = Capture::start(&lab, "last", "");
    router.stop();
    wait_for("it ends with the daemon", || capture.child.try_wait().unwrap().is_some());
    let said = capture.said();
    assert_eq!(capture.child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.ends_with("sweepd: the daemon has ended, and the capture with it\n"), "{said}");
}
