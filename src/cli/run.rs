//! `sweepd run`: the daemon, in the foreground.

use std::path::Path;

use sweepd::{
    config::Config,
    control::{barrier::Barrier, reload::Trigger},
    daemon::{Counters, Daemon, confine::Confinement},
};

use super::{
    Failure,
    manager::Manager,
    signals::{Signals, Wish},
};

/// Routes packets until SIGTERM or SIGINT. `path` is the configuration's file, which is read again
/// after SIGHUP and when it changes.
///
/// # Errors
/// The daemon cannot start, or cannot go on.
pub fn run(config: Config, path: &Path) -> Result<(), Failure> {
    let signals = Signals::new()?;
    let started = Daemon::start_confined(&config, Counters::File, true, Some(path), Confinement::Full);
    let daemon = started.inspect_err(|_| tell_of(&Barrier::new(&config.daemon.runtime_dir)))?;
    let manager = Manager::find();
    manager.ready(config.ports.len());
    let result = serve(&daemon, &signals, &manager);
    manager.stopping();
    let barrier = daemon.barrier().cloned();
    daemon.stop();
    if let Some(barrier) = barrier {
        // Only the operator's word opens the kernel's forwarding again.
        if result.is_ok()
            && let Err(e) = barrier.lower()
        {
            log::error!("{e}");
        }
        tell_of(&barrier);
    }
    log::info!("ended; the ports are the kernel's again");
    result
}

/// Says that the kernel forwards nothing between the ports, if that is so.
fn tell_of(barrier: &Barrier) {
    if barrier.is_up() {
        log::warn!(
            "the kernel forwards nothing into and out of the ports until sweepd runs again; to let it: {}",
            barrier.by_hand()
        );
    }
}

/// Goes on until a signal asks for the end.
fn serve(daemon: &Daemon, signals: &Signals, manager: &Manager) -> Result<(), Failure> {
    loop {
        crossbeam_channel::select! {
            recv(signals.wishes) -> wish => match wish {
                Ok(Wish::Reload) => daemon.reload(Trigger::Signal),
                Ok(Wish::End) | Err(_) => return Ok(()),
            },
            recv(manager.due) -> _ => {
                if daemon.workers_sweep() {
                    manager.alive();
                }
            }
            recv(daemon.notices()) -> notice => match notice {
                Ok(_) => {}
                Err(_) => return Err(Failure::running("the keeper has ended; see the log above")),
            },
        }
    }
}
