//! Signals, as messages.

use std::{thread, time::Instant};

use crossbeam_channel::{Receiver, unbounded};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals as Iterator,
};

use super::Failure;

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// SIGTERM, SIGINT: end, in order.
    End,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// The signals that have come.
pub struct Signals {
    /// One message each.
    pub wishes: Receiver<Wish>,
}

impl Signals {
    /// From now on the signals no longer end the process by themselves.
    ///
    /// # Errors
    /// When there can be no more threads or descriptors.
    pub fn new() -> Result<Self, Failure> {
        let cannot = |e| Failure::running(format!("cannot listen to signals: {e}"));
        let mut signals = Iterator::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]).map_err(cannot)?;
        let (to, wishes) = unbounded();
        let listen = move || {
            for signal in signals.forever() {
                let wish = match signal {
                    SIGHUP => Wish::Reload,
                    // Sent by mistake, to ask for what other daemons do then. Without this they kill.
                    SIGUSR1 | SIGUSR2 => continue,
                    _ => Wish::End,
                };
                if to.send(wish).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(listen).map_err(cannot)?;
        Ok(Self { wishes })
    }

    /// The next signal, if one comes before `deadline`.
    pub fn wait_until(&self, deadline: Instant) -> Option<Wish> {
        self.wishes.recv_deadline(deadline).ok()
    }
}
