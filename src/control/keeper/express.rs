//! The keeper's part in express: it keeps the copies of the tables that the driver's programs read, puts
//! the programs in and takes them out, and knows which interfaces take what they redirect.

use std::{
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, never};
use netmap::device::{PortControl, xdp::Hook};

use super::{
    owed::{Owed, Settings},
    work::Work,
};
use crate::{
    control::rib::Rib,
    express::Express,
    forward::messages::ToKeeper,
    tables::{self, PortId, Tables, acl::Acl, shown::Counts},
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

/// The tables as the programs see them: two copies, of which one is in force. They follow those of the
/// workers, who never wait for them: a copy may be changed only an RCU grace period after it was in
/// force, and what has come by then is written together.
struct Copies {
    tables: [Tables; 2],
    owed: [Option<Owed>; 2],
    active: usize,
}

impl Copies {
    fn new(engine: &Express, rib: &Rib, acl: Option<Arc<Acl>>) -> io::Result<Self> {
        let copy = |instance| {
            let mut tables = Tables::new()?;
            tables.move_to(&engine.house(instance))?;
            io::Result::Ok(tables)
        };
        let everything = Some(Owed::everything(rib, acl));
        Ok(Self { tables: [copy(0)?, copy(1)?], owed: [everything.clone(), everything], active: 0 })
    }

    /// Whether a port's packets pass here that have to be seen by a stage of `tables`.
    fn are_too_free(&self, tables: &Tables) -> bool {
        let free = |tables: &Tables, port| tables.obstacle(port).is_none();
        let ports = self.tables[self.active].ports.len().min(tables.ports.len());
        (0..ports as PortId).any(|port| free(&self.tables[self.active], port) && !free(tables, port))
    }

    /// Brings the copy up to date that is not in force, and puts it in force if it then knows more than
    /// the other one. Nobody may read it.
    fn refresh(&mut self, engine: &mut Express, settings: &Settings, rib: &Rib) {
        let idle = 1 - self.active;
        let Some(owed) = self.owed[idle].take() else { return };
        let tables = &mut self.tables[idle];
        if settings.write(tables, rib, &owed).is_err() {
            // The workers' tables are as full, and the log says so; there may be room again later.
            self.owed[idle] = Some(Owed { whole: true, ..Owed::default() });
        }
        tables.show();
        if self.owed[self.active].is_some() {
            engine.activate(idle);
            self.active = idle;
        }
    }
}

/// The express programs' tables, once a port wants them.
#[derive(Default)]
pub(super) struct Driver {
    engine: Option<(Express, Copies)>,
    trouble: Option<String>,
    /// Whether somebody captures, who is to get every packet.
    captured: bool,
    look: bool,
    looked_at: Option<Instant>,
    used_at: Option<Instant>,
}

impl Driver {
    /// What has to be looked after at once when it rings.
    pub fn bell(&self) -> Receiver<()> {
        self.engine.as_ref().map_or_else(never, |(engine, _)| engine.bell().clone())
    }

    /// Looks at the ports and their interfaces with the next step.
    pub fn look_again(&mut self) {
        self.look = true;
    }

    /// Why no port has express now, if it is wanted.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref().or(self.captured.then_some("capture"))
    }

    /// The workers' tables are in force with these changes. Where a stage of theirs has to see packets
    /// that the programs' copy lets pass, no program forwards any more until its copy knows of it.
    pub fn published(&mut self, changes: &Owed, tables: &Tables) {
        let Some((engine, copies)) = &mut self.engine else { return };
        for owed in &mut copies.owed {
            owed.get_or_insert_default().add(changes);
        }
        if copies.are_too_free(tables) {
            engine.close();
        }
    }

    /// Brings the programs' copies up to what the RIB holds, all of which is in force, as far as no
    /// program may still read them; the bell rings when none does.
    pub fn refresh(&mut self, settings: &Settings, rib: &Rib) {
        if let Some((engine, copies)) = self.engine.as_mut().filter(|(engine, _)| engine.is_quiet()) {
            copies.refresh(engine, settings, rib);
        }
    }

    /// What express has forwarded for a port.
    pub fn counts(&self, port: PortId) -> Counts {
        self.engine.as_ref().map_or_else(Counts::default, |(engine, _)| engine.counts(port))
    }

    /// Nothing is redirected to the port any more, and nothing from it.
    pub fn leave_device(&self, port: PortId, of: &mut OfPort) {
        let Some((engine, _)) = &self.engine else { return };
        if of.sends_to.take().is_some()
            && let Err(e) = engine.set_device(port, None)
        {
            log::error!("express: {e}");
        }
    }

    /// Puts the port's program in or takes it out.
    fn put_program(&self, port: PortId, of: &mut OfPort, wanted: bool) {
        let (Some((engine, _)), Some(hook)) = (&self.engine, &of.hook) else { return };
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
        let (Some((engine, _)), Some(hook)) = (&self.engine, &of.hook) else { return };
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
    /// Makes the programs' tables when a port wants them for the first time.
    pub(super) fn start_express(&mut self) {
        if self.express.engine.is_some() || self.express.trouble.is_some() {
            return;
        }
        let wants = |(id, port): (PortId, &Option<super::PortState>)| {
            let has = port.as_ref().is_some_and(|port| port.express.hook.is_some());
            has && self.rib.port(id).is_some_and(|table| table.express != tables::Express::Off)
        };
        if !(0..).zip(&self.ports).any(wants) {
            return;
        }
        let acl = self.publisher.tables().acl.clone();
        let made = Express::new().and_then(|engine| match Copies::new(&engine, &self.rib, acl) {
            Ok(copies) => Ok((engine, copies)),
            Err(e) => Err(format!("express has no memory: {e}")),
        });
        match made {
            Ok(engine) => self.express.engine = Some(engine),
            Err(why) => {
                log::warn!("{why}; workers forward everything");
                self.express.trouble = Some(why);
            }
        }
        self.express.look = true;
    }

    /// Looks after programs, interfaces and the neighbours that only express uses.
    pub(super) fn drive_express(&mut self, now: Instant) {
        if self.express.engine.is_none() {
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
            let next_hops =
                self.express.engine.as_mut().map(|(engine, _)| engine.take_used()).unwrap_or_default();
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
