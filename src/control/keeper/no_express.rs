//! Express is Linux's: elsewhere workers forward everything.

use std::time::Instant;

use crossbeam_channel::{Receiver, never};
use netmap::device::PortControl;

use super::{
    owed::{Owed, Settings},
    work::Work,
};
use crate::{
    control::rib::Rib,
    tables::{PortId, Tables, shown::Counts},
};

/// What a port has to do with express: nothing.
#[derive(Default)]
pub struct OfPort(());

impl OfPort {
    pub(super) fn new(_control: &dyn PortControl) -> Self {
        Self(())
    }

    /// Whether the port's packets are forwarded in the driver: there is no such thing.
    pub fn state(
        &self,
        _tables: &Tables,
        _port: PortId,
        _trouble: Option<&str>,
    ) -> Option<Result<(), String>> {
        None
    }

    /// Whether what express forwards may leave by the port.
    pub fn takes_frames(&self) -> Option<bool> {
        None
    }
}

/// Nothing to look after.
#[derive(Default)]
pub(super) struct Driver(());

impl Driver {
    pub fn bell(&self) -> Receiver<()> {
        never()
    }

    pub fn look_again(&mut self) {}

    pub fn trouble(&self) -> Option<&str> {
        None
    }

    pub fn published(&mut self, _changes: &Owed, _tables: &Tables) {}

    pub fn refresh(&mut self, _settings: &Settings, _rib: &Rib) {}

    pub fn counts(&self, _port: PortId) -> Counts {
        Counts::default()
    }

    pub fn leave_device(&self, _port: PortId, _of: &mut OfPort) {}
}

impl Work {
    pub(super) fn start_express(&mut self) {}

    pub(super) fn drive_express(&mut self, _now: Instant) {}
}
