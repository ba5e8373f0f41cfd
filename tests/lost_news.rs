//! News of the kernel's that get lost, by the hundred: some in silence, others because nobody reads
//! them in time. In the end the kernel, the RIB and the FIB agree, and the FIB says what was done.
//! Needs root and iproute2; says so and passes otherwise.

#![cfg(target_os = "linux")]

#[path = "common/following.rs"]
mod following;
#[path = "common/rtnetlink.rs"]
mod rtnetlink;

use std::{
    io,
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use following::{Lab, Namespace, is_possible};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rtnetlink::{History, Routes};
use sweepd::{
    control::{
        diff::Comparison,
        kernel::{Follow, KernelEvent, KernelSource, Open, Opened, Report, linux},
    },
    tables::{Action, NextHopId, Tables, synthetic::Random},
};

/// Changes of routes.
const CHANGES: usize = 100_000;
/// Time between two comparisons with everything that the kernel has.
const RECONCILE: Duration = Duration::from_millis(500);
/// Longest wait for anything, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

const GATEWAYS4: [&str; 2] = ["203.0.113.2", "10.0.0.2"];
const GATEWAYS6: [&str; 2] = ["2001:db8:1::2", "2001:db8:2::2"];

/// A source that reads another, and what it passes on; every time it is late.
struct Through {
    source: Box<dyn KernelSource>,
    late: Duration,
    passes: Box<dyn FnMut(&Report) -> bool + Send>,
}

impl KernelSource for Through {
    fn wait(&mut self, out: &mut Vec<Report>) -> io::Result<bool> {
        while out.is_empty() {
            std::thread::sleep(self.late);
            if !self.source.wait(out)? {
                return Ok(false);
            }
            out.retain(&mut self.passes);
        }
        Ok(true)
    }
}

static WITHHELD: AtomicU64 = AtomicU64::new(0);
static OVERRUNS: AtomicU64 = AtomicU64::new(0);

/// One in a hundred of the news is withheld.
fn open_leaky(follow: Follow) -> io::Result<Opened> {
    let (source, commands) = linux::open(follow)?;
    let mut random = Random::new(7);
    let passes = move |report: &Report| {
        let lost = !report.listed && random.below(100) == 0;
        WITHHELD.fetch_add(lost.into(), Ordering::Relaxed);
        !lost
    };
    Ok((Box::new(Through { source, late: Duration::ZERO, passes: Box::new(passes) }), commands))
}

/// There is room for a few news to wait, and they have to.
fn open_small(follow: Follow) -> io::Result<Opened> {
    let (source, commands) = linux::open_with_room(follow, 2048)?;
    let passes = |report: &Report| {
        OVERRUNS.fetch_add((report.event == KernelEvent::Overrun).into(), Ordering::Relaxed);
        true
    };
    let late = Duration::from_millis(1);
    Ok((Box::new(Through { source, late, passes: Box::new(passes) }), commands))
}

/// Gateways that are known all the time: a member of a group that is not would be left out.
fn prepare(router: &Namespace, _: &Namespace) {
    for (n, port) in ["wan", "lan"].into_iter().enumerate() {
        router.ip(&format!("addr add 2001:db8:{}::1/64 dev {port} nodad", n + 1));
        for gateway in [GATEWAYS4[n], GATEWAYS6[n]] {
            router.ip(&format!("neigh replace {gateway} lladdr 02:00:00:00:00:99 nud permanent dev {port}"));
        }
    }
}

/// Nested and neighbouring prefixes, some thousands.
fn prefixes() -> Vec<IpNet> {
    let mut random = Random::new(1);
    let v4 = (0..4000).map(|_| {
        let length = 18 + random.below(12) as u8;
        let address = 20 << 24 | random.below(1 << 18) as u32;
        IpNet::from(Ipv4Net::new(address.into(), length).unwrap().trunc())
    });
    let mut all: Vec<IpNet> = v4.collect();
    all.extend((0..1000).map(|_| {
        let length = 40 + random.below(30) as u8;
        let address = 0x2a00_u128 << 112 | (random.below(1 << 10) as u128) << 64;
        IpNet::from(Ipv6Net::new(address.into(), length).unwrap().trunc())
    }));
    all.sort_unstable();
    all.dedup();
    all
}

fn gateways() -> [Vec<IpAddr>; 2] {
    [GATEWAYS4, GATEWAYS6].map(|all| all.iter().map(|address| address.parse().unwrap()).collect())
}

/// What the tables say of `address`: the gateways, none for a black hole.
fn way(tables: &Tables, address: IpAddr) -> Option<Vec<IpAddr>> {
    let id = match address {
        IpAddr::V4(a) => tables.fib4.lookup(u32::from(a)),
        IpAddr::V6(a) => tables.fib6.lookup(u128::from(a)),
    };
    let info = tables.next_hop_info(id);
    let gateway = |id: &NextHopId| tables.next_hop_info(*id).gateway;
    match info.action {
        Action::NoRoute => None,
        Action::Blackhole => Some(Vec::new()),
        Action::Group => {
            let buckets = &tables.groups[usize::from(info.group)].buckets;
            let mut all: Vec<IpAddr> = buckets.iter().filter_map(gateway).collect();
            all.sort_unstable();
            all.dedup();
            Some(all)
        }
        _ => gateway(&id).map(|gateway| vec![gateway]),
    }
}

/// Makes all changes, as fast as the kernel takes them; gives when nothing differs any more.
fn change_and_agree(lab: &mut Lab) {
    let mut history = History::new(u64::from(std::process::id()), prefixes(), gateways());
    let mut routes = Routes::open();
    let start = Instant::now();
    let mut made = 0;
    for _ in 0..CHANGES / rtnetlink::AT_ONCE + 1 {
        let some: Vec<_> = (0..rtnetlink::AT_ONCE).map(|_| history.next()).collect();
        made += routes.change(&some);
    }
    println!("{made} changes took {:.1?}", start.elapsed());
    assert_eq!(made, (CHANGES / rtnetlink::AT_ONCE + 1) * rtnetlink::AT_ONCE);
    let end = Instant::now();
    let comparison = Comparison::start(lab.keeper.as_ref().unwrap().queries()).unwrap();
    let mut looks = 0;
    loop {
        looks += 1;
        let differences = comparison.differ().ask().recv_timeout(LONG).unwrap().unwrap();
        println!("{} differences after {:.1?}", differences.len(), end.elapsed());
        if differences.is_empty() {
            break;
        }
        assert!(
            end.elapsed() < LONG,
            "after {looks} looks: {:#?}",
            &differences[..differences.len().min(10)]
        );
    }
    drop(comparison);
    // The comparison may err; what was done is known.
    lab.look(|tables| {
        let mut routed = 0;
        for net in prefixes() {
            let mut expected = history.way(net.addr());
            expected.iter_mut().for_each(|ways| ways.sort_unstable());
            routed += usize::from(expected.is_some());
            assert_eq!(way(tables, net.addr()), expected, "{net}");
        }
        assert!(routed > 1000, "{routed}");
    });
}

/// In a lab whose keeper hears of the kernel by `open`.
fn in_lab(open: Open) {
    if !is_possible() {
        return;
    }
    let test = move || {
        let mut lab = Lab::new(prepare, |config| (config.open, config.reconcile) = (open, RECONCILE));
        change_and_agree(&mut lab);
    };
    if let Err(panic) = std::thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn what_is_withheld_in_silence_is_found_by_comparing() {
    in_lab(open_leaky);
    let withheld = WITHHELD.load(Ordering::Relaxed);
    println!("{withheld} news withheld");
    assert!(!is_possible() || withheld > CHANGES as u64 / 200, "{withheld}");
}

#[test]
fn overruns_by_the_dozen_are_made_good() {
    in_lab(open_small);
    let overruns = OVERRUNS.load(Ordering::Relaxed);
    println!("{overruns} overruns");
    assert!(!is_possible() || overruns > 10, "{overruns}");
}
