//! The keeper's part in express: it moves the tables to where the driver's programs read them, puts the
//! programs in and takes them out, and knows which interfaces take what they redirect.

use std::{
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, never};
use netmap::device::{PortControl, xdp::Hook};

use super::work::Work;
use crate::{
    express::Express,
    forward::messages::ToKeeper,
    tables::{self, PortId, Tables, shown::Counts},
};

/// How often the keeper looks which next hops express has used.
const USED: Duration = Duration::from_secs(10);
/// Longest time between two looks at the interfaces.
const DEVICES: Duration = Duration::from_secs(1);

/// What a port has to do with express.
#[derive(Default)]
pub struct OfPort {
    hook: Option<Hook>,
    /// Whether the program stands in its place.
    is_in: bool,
    /// Why it cannot.
    trouble: Option<String>,
    /// Whether the port's interface takes redirected frames; none before that was asked.
    takes_frames: Option<bool>,
    /// The interface to which the programs send what leaves by the port.
    sends_to: Option<u32>,
    /// What the log has said of the port last.
    told: Option<String>,
}

impl OfPort {
    pub(super) fn new(control: &dyn PortControl) -> Self {
        let hook = control.hook().unwrap_or_else(|e| {
            log::error!("express: no way to the port's program: {e}");
            None
        });
        Self { hook, ..Self::default() }
    }

    /// Whether the port's packets are forwarded in the driver, and if not, why, for people. None where
    /// the device has no such thing.
    pub fn state(&self, tables: &Tables, port: PortId, trouble: Option<&str>) -> Option<Result<(), String>> {
        self.hook.as_ref()?;
        Some(match (trouble.or(self.trouble.as_deref()), tables.obstacle(port)) {
            (_, Some(obstacle)) => Err(obstacle.text().into()),
            (Some(trouble), None) => Err(trouble.into()),
            (None, None) if !self.is_in => Err("not yet".into()),
            (None, None) => Ok(()),
        })
    }

    /// Whether what express forwards may leave by the port; none where that is not known.
    pub fn takes_frames(&self) -> Option<bool> {
        self.takes_frames
    }
}

/// The express programs' tables, once a port wants them.
#[derive(Default)]
pub(super) struct Driver {
    engine: Option<Express>,
    trouble: Option<String>,
    /// Whether somebody captures, who is to get every packet.
    captured: bool,
    /// Instances of the tables that lie where the programs read.
    moved: usize,
    look: bool,
    looked_at: Option<Instant>,
    used_at: Option<Instant>,
}

impl Driver {
    /// What has to be looked after at once when it rings.
    pub fn bell(&self) -> Receiver<()> {
        self.engine.as_ref().map_or_else(never, |engine| engine.bell().clone())
    }

    /// Looks at the ports and their interfaces with the next step.
    pub fn look_again(&mut self) {
        self.look = true;
    }

    /// Why no port has express now, if it is wanted.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref().or(self.captured.then_some("capture"))
    }

    /// Whether no program reads the instance of the tables that is not in force.
    pub fn is_quiet(&self) -> bool {
        self.engine.as_ref().is_none_or(Express::is_quiet)
    }

    /// Has instance 0 or 1 of the tables, which nobody reads, lie where the programs can read it.
    pub fn move_in(&mut self, tables: &mut Tables, instance: usize) {
        let Some(engine) = self.engine.as_ref().filter(|_| tables.shown.is_none()) else { return };
        match tables.move_to(&engine.house(instance)) {
            Ok(()) => self.moved += 1,
            Err(e) => self.give_up(format!("express has no memory: {e}")),
        }
    }

    /// Instance 0 or 1 of the tables is in force.
    pub fn activate(&mut self, instance: usize) {
        if let Some(engine) = &mut self.engine {
            engine.activate(instance);
        }
    }

    /// What express has forwarded for a port.
    pub fn counts(&self, port: PortId) -> Counts {
        self.engine.as_ref().map_or_else(Counts::default, |engine| engine.counts(port))
    }

    /// Nothing is redirected to the port any more, and nothing from it.
    pub fn leave_device(&self, port: PortId, of: &mut OfPort) {
        let Some(engine) = &self.engine else { return };
        if of.sends_to.take().is_some()
            && let Err(e) = engine.set_device(port, None)
        {
            log::error!("express: {e}");
        }
    }

    fn give_up(&mut self, why: String) {
        log::warn!("{why}; workers forward everything");
        self.trouble = Some(why);
        self.engine = None;
    }

    /// Puts the port's program in or takes it out.
    fn put_program(&self, port: PortId, of: &mut OfPort, wanted: bool) {
        let (Some(engine), Some(hook)) = (&self.engine, &of.hook) else { return };
        if of.is_in == wanted || of.trouble.is_some() {
            return;
        }
        let result = if wanted {
            engine.load(port, hook.sockets()).and_then(|program| hook.set(std::os::fd::AsFd::as_fd(&program)))
        } else {
            hook.clear()
        };
        match result {
            Ok(()) => of.is_in = wanted,
            Err(e) => of.trouble = Some(format!("the kernel refuses the program: {e}")),
        }
    }

    /// Has the programs send what leaves by the port to its interface, if that takes it.
    fn aim(&self, port: PortId, of: &mut OfPort, is_up: bool, is_native: bool, name: Option<&str>) {
        let (Some(engine), Some(hook)) = (&self.engine, &of.hook) else { return };
        let interface = hook.interface();
        let takes = engine.takes_frames(interface).unwrap_or_else(|| {
            // Before Linux 6.3 nobody can say it of a veth; a driver with XDP of a real device does,
            // while it has a program.
            let device = Path::new("/sys/class/net").join(name.unwrap_or_default()).join("device");
            is_native && device.exists()
        });
        of.takes_frames = Some(takes);
        let aim = (takes && is_up).then_some(interface);
        if of.sends_to == aim {
            return;
        }
        match engine.set_device(port, aim) {
            Ok(()) => of.sends_to = aim,
            // The interface is going: the next look knows more.
            Err(e) => log::debug!("express: port number {port}: {e}"),
        }
    }
}

impl Work {
    /// Makes the programs' tables when a port wants them for the first time; gives whether all tables
    /// are to be moved.
    pub(super) fn start_express(&mut self) -> bool {
        if self.express.engine.is_some() || self.express.trouble.is_some() {
            return false;
        }
        let wants = |(id, port): (PortId, &Option<super::PortState>)| {
            let has = port.as_ref().is_some_and(|port| port.express.hook.is_some());
            has && self.rib.port(id).is_some_and(|table| table.express != tables::Express::Off)
        };
        if !(0..).zip(&self.ports).any(wants) {
            return false;
        }
        match Express::new() {
            Ok(engine) => {
                self.express.engine = Some(engine);
                self.express.look = true;
                true
            }
            Err(why) => {
                self.express.give_up(why);
                false
            }
        }
    }

    /// Looks after programs, interfaces and the neighbours that only express uses.
    pub(super) fn drive_express(&mut self, now: Instant) {
        // No program is there before both instances are: so they can still be given up until then.
        if self.express.engine.is_none() || self.express.moved < 2 {
            return;
        }
        let captured = self.captures.load(Ordering::Relaxed) > 0;
        if std::mem::replace(&mut self.express.captured, captured) != captured {
            self.express.look = true;
        }
        let due = |at: Option<Instant>, every| at.is_none_or(|at| now.saturating_duration_since(at) >= every);
        if std::mem::take(&mut self.express.look) || due(self.express.looked_at, DEVICES) {
            self.express.looked_at = Some(now);
            self.look_at_ports();
        }
        if due(self.express.used_at, USED) {
            self.express.used_at = Some(now);
            let next_hops = self.express.engine.as_mut().map(Express::take_used).unwrap_or_default();
            if !next_hops.is_empty() {
                self.worker_says(ToKeeper::Used { next_hops });
            }
        }
    }

    fn look_at_ports(&mut self) {
        let trouble = self.express.trouble().map(str::to_owned);
        for (id, port) in (0..).zip(&mut self.ports) {
            let Some(port) = port else { continue };
            let Some(table) = self.rib.port(id) else { continue };
            let is_up = table.up && port.gone.is_none();
            let is_native = port.mode.contains("native");
            self.express.aim(id, &mut port.express, is_up, is_native, port.interface.as_deref());
            let wanted =
                table.express != tables::Express::Off && port.gone.is_none() && !self.express.captured;
            self.express.put_program(id, &mut port.express, wanted);
            if table.express == tables::Express::On {
                let state = port.express.state(self.publisher.tables(), id, trouble.as_deref());
                let says = state.and_then(Result::err).filter(|why| why != "not yet");
                if says != port.express.told {
                    match &says {
                        Some(why) => log::warn!("port {}: express is off: {why}", table.name),
                        None => log::info!("port {}: express is on again", table.name),
                    }
                    port.express.told = says;
                }
            }
        }
    }
}
