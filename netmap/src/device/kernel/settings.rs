//! The interface settings that netmap needs, changed at open and restored at close.

use std::{io, sync::Arc};

use super::{
    errors,
    system::{Offload, System},
};
use crate::queue::Losses;

/// What was changed on an interface; dropping it changes it back.
#[derive(Debug)]
pub(super) struct Settings {
    system: Arc<dyn System>,
    interface: String,
    /// MTU in bytes at open.
    pub(super) mtu: u32,
    /// Offloads turned off, in this order.
    turned_off: Vec<&'static Offload>,
    was_promiscuous: Option<bool>,
}

impl Settings {
    /// Turns the offloads off; promiscuous mode comes after the port is open.
    pub(super) fn take(system: &Arc<dyn System>, interface: &str) -> Result<Self, String> {
        let mtu = system.mtu(interface).map_err(|e| errors::interface(&e, interface))?;
        let mut settings = Self {
            system: system.clone(),
            interface: interface.to_owned(),
            mtu,
            turned_off: Vec::new(),
            was_promiscuous: None,
        };
        settings.turn_off().map_err(|e| errors::interface(&e, interface))?;
        let left = settings.system.offloads(interface).map_err(|e| errors::interface(&e, interface))?;
        if let Some(offload) = left.iter().find(|o| o.fatal) {
            return Err(errors::offload(interface, offload.name));
        }
        for offload in left {
            log::warn!("netmap:{interface}: {} stays on, the driver has it fixed", offload.name);
        }
        Ok(settings)
    }

    /// Turns off every offload that is on. One that the driver has fixed is left.
    fn turn_off(&mut self) -> io::Result<()> {
        for offload in self.system.offloads(&self.interface)? {
            match self.system.set_offload(&self.interface, offload, false) {
                Ok(()) if !self.turned_off.contains(&offload) => self.turned_off.push(offload),
                Ok(()) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sets promiscuous mode, by a change of the flag: a driver may have forgotten it on the way
    /// into netmap mode while the flag was set.
    pub(super) fn set_promiscuous(&mut self) -> Result<(), String> {
        let set = || -> io::Result<bool> {
            let before = self.system.promiscuous(&self.interface)?;
            if before {
                self.system.set_promiscuous(&self.interface, false)?;
            }
            self.system.set_promiscuous(&self.interface, true)?;
            Ok(before)
        };
        let before = set().map_err(|e| errors::interface(&e, &self.interface))?;
        self.was_promiscuous = Some(before);
        Ok(())
    }

    /// Does again what other programs have undone.
    pub(super) fn tend(&mut self) -> io::Result<()> {
        if self.was_promiscuous.is_some() && !self.system.promiscuous(&self.interface)? {
            log::warn!("netmap:{}: promiscuous mode was turned off, turning it on again", self.interface);
            self.system.set_promiscuous(&self.interface, true)?;
        }
        let on = self.system.offloads(&self.interface)?;
        if on.iter().any(|o| self.turned_off.contains(o) || o.fatal) {
            log::warn!("netmap:{}: offloads were turned on, turning them off again", self.interface);
            self.turn_off()?;
        }
        Ok(())
    }

    pub(super) fn carrier(&self) -> Option<bool> {
        self.system.carrier(&self.interface).ok()
    }

    pub(super) fn losses(&self) -> Losses {
        self.system.losses(&self.interface)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if self.was_promiscuous == Some(false) {
            // The interface may be gone; there is nobody to tell.
            let _ = self.system.set_promiscuous(&self.interface, false);
        }
        for offload in self.turned_off.drain(..).rev() {
            let result = self.system.set_offload(&self.interface, offload, true);
            if let Err(e) = result
                && !matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
            {
                log::warn!("netmap:{}: {} could not be turned on again: {e}", self.interface, offload.name);
            }
        }
    }
}
