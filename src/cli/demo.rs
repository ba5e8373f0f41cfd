//! `sweepd demo`: made-up traffic through the real loop, inside one process.

use std::time::{Duration, Instant};

use sweepd::{
    config,
    daemon::{Counters, Daemon},
    stats::{
        netstat::{Netstat, NetstatOptions},
        read::PortTotals,
    },
};

use super::{
    Failure, logging, print_live,
    signals::{Signals, Wish},
};

/// Time between two rows.
const ROW: Duration = Duration::from_secs(1);

/// The demonstration's configuration: two generators face each other through the router. Each
/// makes the benchmark's frames for the networks behind the other one, and swallows what comes.
const CONFIG: &str = r#"
[kernel]
routes = false

[[port]]
name = "left"
device = "gen:flows=1000,size=64,src=198.18.0.0/16,dst=198.19.0.0/16,dmac=02:00:00:00:00:01"
addresses = ["192.0.2.0/31"]
mac = "02:00:00:00:00:01"

[[port]]
name = "right"
device = "gen:flows=1000,size=64,src=198.19.0.0/16,dst=198.18.0.0/16,dmac=02:00:00:00:00:02"
addresses = ["192.0.2.2/31"]
mac = "02:00:00:00:00:02"

[[route]]
to = "198.18.0.0/16"
via = "192.0.2.1"

[[route]]
to = "198.19.0.0/16"
via = "192.0.2.3"

[[neighbor]]
address = "192.0.2.1"
mac = "02:00:00:00:01:01"
port = "left"

[[neighbor]]
address = "192.0.2.3"
mac = "02:00:00:00:01:02"
port = "right"
"#;

/// Routes the benchmark's traffic and shows the live counter until interrupted.
///
/// # Errors
/// The demonstration cannot start.
pub fn demo() -> Result<(), Failure> {
    logging::start();
    let config = config::parse(CONFIG, "demo")?;
    let signals = Signals::new()?;
    let daemon = Daemon::start(&config, Counters::Memory, false, None)?;
    let mut view = Netstat::new(NetstatOptions { drops: true, human: true }, None);
    let mut before = total(&daemon);
    let mut next = Instant::now() + ROW;
    let mut goes_on = print_live(&view.header())?;
    while goes_on {
        match signals.wait_until(next) {
            Some(Wish::End) => break,
            Some(Wish::Reload) => {}
            None => {
                next += ROW;
                let after = total(&daemon);
                goes_on = print_live(&view.row(&before, &after))?;
                before = after;
            }
        }
    }
    daemon.stop();
    Ok(())
}

/// All ports together.
fn total(daemon: &Daemon) -> PortTotals {
    daemon.stats().snapshot().iter().fold(PortTotals::default(), |mut sum, port| {
        sum += port;
        sum
    })
}
