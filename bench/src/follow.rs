//! `sweepd-bench follow`: how the kernel's routes come to be what packets go by, with a table of the
//! Internet's size.
//!
//! Two network namespaces, one after the other. In the first runs the daemon itself, between veth
//! pairs: from the kernel's listing to the FIB, memory, and the time from a change of a route to
//! the first packet that goes the new way (`daemon`). In the second a keeper of the same kind
//! feeds the worker of the [rig](crate::rig), whose cycles can be counted (`load`).

mod daemon;
mod figures;
mod load;
mod probe;
#[path = "../../tests/common/rtnetlink.rs"]
mod rtnetlink;
pub mod space;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use ipnet::IpNet;
use sweepd::tables::{
    NextHopId,
    prefixes::{Prefixes4, Prefixes6},
    recorded, synthetic,
};

use self::rtnetlink::{AT_ONCE, History, Routes};
use figures::Figures;

/// Next hops that the routes use.
const NEXT_HOPS: NextHopId = 64;

/// Measure how the kernel's routes are followed, with a full Internet table (as root)
#[derive(Args)]
pub struct Follow {
    /// Where scripts/tables.sh has put the real tables; made-up ones stand for what is not there
    #[arg(long, default_value_os_t = default_tables())]
    tables: PathBuf,
    /// Changes of routes in a storm
    #[arg(long, default_value_t = 100_000)]
    changes: usize,
    /// Changes whose way to forwarding is timed, without and with a storm
    #[arg(long, default_value_t = 500)]
    rounds: usize,
    /// Where to write data and plots
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
    /// A Markdown file to put the table into as well, where the last one stands
    #[arg(long)]
    document: Option<PathBuf>,
}

fn default_tables() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from).join("tables")
}

/// The tables of both families.
struct FullTables {
    v4: Prefixes4,
    v6: Prefixes6,
}

impl FullTables {
    fn read(dir: &Path) -> io::Result<Self> {
        let is_there = |file: &Path| {
            let there = file.exists();
            if !there {
                println!(
                    "SKIPPED: the real table {}: run scripts/tables.sh; a made-up one stands for it",
                    file.display()
                );
            }
            there
        };
        let (v4, v6) = (dir.join("ipv4.csv"), dir.join("ipv6.csv"));
        Ok(Self {
            v4: if is_there(&v4) {
                recorded::ipv4(&v4, NEXT_HOPS)?
            } else {
                synthetic::ipv4(886_117, NEXT_HOPS, 1)
            },
            v6: if is_there(&v6) {
                recorded::ipv6(&v6, NEXT_HOPS)?
            } else {
                synthetic::ipv6(230_000, NEXT_HOPS, 1)
            },
        })
    }

    /// Prefixes that the tables do not have, between those that they have: halves of theirs.
    fn between(&self) -> Vec<IpNet> {
        let halves =
            self.v4.iter().filter(|(_, length, _)| (16..24).contains(length)).map(|(a, l, _)| (a, l + 1));
        let new = halves.filter(|(address, length)| self.v4.get(*address, *length).is_none());
        let nets = new.step_by(5).take(20_000);
        nets.filter_map(|(address, length)| IpNet::new(std::net::Ipv4Addr::from(address).into(), length).ok())
            .collect()
    }
}

impl Follow {
    /// Measures, prints, and writes `follow.csv` and the plots.
    ///
    /// # Errors
    /// Without root, `ip`, `ethtool` and the daemon's program beside this one; when a file cannot be
    /// written.
    pub fn run(&self) -> io::Result<()> {
        if !nix::unistd::geteuid().is_root() {
            return Err(io::Error::other("network namespaces take root: run it as root"));
        }
        fs::create_dir_all(&self.out)?;
        let tables = FullTables::read(&self.tables)?;
        println!("{} IPv4 and {} IPv6 prefixes, {NEXT_HOPS} next hops", tables.v4.len(), tables.v6.len());
        let mut figures = Figures::new();
        let latencies = daemon::measure(self, &tables, &mut figures)?;
        let samples = load::measure(self, &tables, &mut figures)?;
        print!("\n{}", figures.table());
        if let Some(document) = &self.document {
            figures.put_into(document)?;
        }
        figures.write(&self.out.join("follow.csv"))?;
        probe::plot(&latencies, &self.out.join("follow-latency.svg"))?;
        load::plot(&samples, &self.out.join("follow-cycles.svg"))?;
        println!(
            "\nwritten: {}",
            self.out.join("follow.csv, follow-latency.svg, follow-cycles.svg").display()
        );
        Ok(())
    }
}

/// Makes `changes` random changes of the routes to `prefixes`, at full speed.
fn storm(routes: &mut Routes, prefixes: Vec<IpNet>, gateways: [Vec<std::net::IpAddr>; 2], changes: usize) {
    let mut history = History::new(1, prefixes, gateways);
    for _ in 0..changes.div_ceil(AT_ONCE) {
        let some: Vec<_> = (0..AT_ONCE).map(|_| history.next()).collect();
        routes.change(&some);
    }
}
