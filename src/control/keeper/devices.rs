//! What the keeper tells the ports' devices, and what it hears of them.

use super::{Notice, work::Work};

impl Work {
    /// Tells the devices which VLANs are the rings', and whether the host has a part in them.
    pub(super) fn tell_vlans(&mut self) {
        for (id, port) in (0..).zip(&mut self.ports) {
            let Some(port) = port else { continue };
            let Some(control) = &mut port.control else { continue };
            if let Err(e) = control.set_vlans(&self.rib.vlans(id)) {
                log::error!("{}: cannot set its VLANs: {e}", port.device);
            }
        }
    }

    /// Has the devices' settings looked after; a device that is gone is told once by its name.
    pub(super) fn tend(&mut self) {
        for (id, port) in (0..).zip(&mut self.ports) {
            let control = port.as_mut().and_then(|port| port.control.as_mut());
            if let Some(Err(e)) = control.map(|control| control.tend()) {
                // Nobody hears it only when the daemon ends.
                let _ = self.notices.send(Notice::PortGone { port: id, reason: e.to_string() });
            }
        }
    }

    /// Counts what devices did outside the rings.
    pub(super) fn count_losses(&mut self) {
        for (id, port) in (0..).zip(&mut self.ports) {
            if let Some(port) = port {
                port.count(self.express.counts(id));
            }
        }
    }
}
