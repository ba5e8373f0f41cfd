//! A router whose worker can be made to fail: the daemon as it is, in a process of its own, with one
//! port more, whose device panics after SIGUSR1 and hangs for a while after SIGUSR2.

use std::{
    ffi::OsString,
    path::Path,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use netmap::{
    OpenError, OpenOptions, Port,
    device::{self, Device, DeviceSpec},
};
use signal_hook::{
    consts::{SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};
use sweepd::{
    config,
    daemon::{Counters, Daemon, confine::Confinement},
};

use crate::{
    mischief::{Mischief, bad_port},
    net::{Lab, Router},
};

/// Names the configuration, in the environment.
const CONFIG: &str = "SWEEPD_FAULTY_CONFIG";
/// The port that fails, for the configuration. Its device is another than it says.
pub const BAD_PORT: &str = "[[port]]\nname = \"bad\"\ndevice = \"pipe:bad\"\n";
/// How long the worker hangs: longer than it takes until that is told, and not so long that a ring
/// of 2048 slots gets full of 500 packets a second.
pub const HANGS: Duration = Duration::from_millis(3700);

/// Starts it with the configuration that was written last.
pub fn launch(lab: &Lab) -> Router {
    let config = lab.dir.path().join("sweepd.toml");
    let mut command: Vec<OsString> = vec!["env".into(), format!("{CONFIG}={}", config.display()).into()];
    command.push(std::env::current_exe().unwrap().into());
    command.extend(["--exact", "faulty::the_router", "--ignored", "--nocapture"].map(OsString::from));
    let mut router = lab.launch_command(&command);
    lab.wait_for_start(&mut router);
    router
}

#[test]
#[ignore = "the router of the soak, which starts it in a process of its own"]
fn the_router() {
    let Some(path) = std::env::var_os(CONFIG) else {
        eprintln!("skipped: the router of the soak, since the soak has not started it");
        return;
    };
    env_logger::Builder::new().format_timestamp_millis().filter_level(log::LevelFilter::Info).init();
    let mut signals = Signals::new([SIGTERM, SIGUSR1, SIGUSR2]).unwrap();
    let mischief = Arc::new(Mischief::default());
    let opened = mischief.clone();
    let open = Arc::new(move |requests: &[(DeviceSpec, OpenOptions)]| open_ports(requests, &opened));
    let path = Path::new(&path);
    let config = config::load(path).unwrap();
    let daemon =
        Daemon::start_with(&config, Counters::File, true, Some(path), Confinement::Full, open).unwrap();
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => mischief.panic.store(true, Ordering::Relaxed),
            SIGUSR2 => {
                mischief.hang.store(true, Ordering::Relaxed);
                let mischief = mischief.clone();
                thread::spawn(move || {
                    thread::sleep(HANGS);
                    mischief.hang.store(false, Ordering::Relaxed);
                });
            }
            _ => break,
        }
    }
    daemon.stop();
}

/// Opens all ports as ever, but for the pipe.
fn open_ports(
    requests: &[(DeviceSpec, OpenOptions)],
    mischief: &Arc<Mischief>,
) -> Result<Vec<Port>, OpenError> {
    let is_bad = |(spec, _): &&(DeviceSpec, OpenOptions)| matches!(spec.device, Device::Pipe(_));
    let good: Vec<_> = requests.iter().filter(|request| !is_bad(request)).cloned().collect();
    let mut good = device::open_all(&good)?.into_iter();
    let port = |request| if is_bad(&request) { Some(bad_port(mischief)) } else { good.next() };
    Ok(requests.iter().filter_map(port).collect())
}
