//! Which worker knows the flow of a packet. One that is translated belongs to the worker that
//! translates it; where rules ask for a packet's place in a flow, any other belongs to the worker
//! that its two hosts name, whichever way it goes. A worker hands over what is not its own before a
//! rule is asked, so that every packet is judged, and counted, once.

use super::{Context, ETHERNET, Ending, Found, Slow};
use crate::{
    forward::{
        filter::state::hosts,
        handover::Task,
        translate::{pieces::Piece, upper::Kind},
        verdict::Verdict,
    },
    tables::Action,
    wire::ipv4,
};

impl Context<'_> {
    /// Whether packets belong to workers: flows are followed, or translated.
    pub(super) fn has_owners(&self) -> bool {
        self.has_state() || self.tables.masquerade.is_on()
    }

    /// Whether rules ask for a packet's place in a flow.
    pub(super) fn has_state(&self) -> bool {
        self.tables.acl.as_ref().is_some_and(|acl| acl.has_state())
    }
}

impl Slow {
    /// Sees to it that this is the worker which knows the flow of an IPv4 packet whose destination
    /// is not translated. Gives what its later fragments go by; `Err` when it is another worker's
    /// now, or has ended otherwise.
    pub(super) fn find_owner4(
        &mut self,
        context: &mut Context<'_>,
        frame: &[u8],
        found: Found,
        piece: Option<Piece>,
    ) -> Result<Option<Piece>, Ending> {
        let Ok(packet) = ipv4::parse(&frame[ETHERNET..]) else { return Err(Verdict::Runt.into()) };
        let (rules, out) = (&context.tables.masquerade, found.hop.port);
        let leads_on = matches!(found.action, Action::Forward | Action::Resolve | Action::Glean);
        let translated = leads_on && rules.is_out(out) && rules.is_inside(out, packet.header.source().into());
        if !translated {
            let followed = context.has_state();
            return if followed { self.find_owner(context, frame) } else { Ok(()) }.map(|()| piece);
        }
        let (ends, piece) = self.ends4(context, frame, &packet, piece)?;
        let (protocol, kind, inside, remote) = if ends.kind == Kind::Error {
            let ends = super::translate::quoted(&packet).map_err(Ending::from)?;
            (ends.protocol, ends.kind, ends.destination, ends.source)
        } else {
            (ends.protocol, ends.kind, ends.source, ends.destination)
        };
        let seed = context.tables.hash_seed;
        let owner = self.translator.owner_inside(seed, protocol, kind, inside, remote);
        if self.translator.is(owner) {
            return Ok(piece);
        }
        let task = piece.map_or(Task::All, Task::Piece);
        Err(context.pass_on(self.translator.peer(owner), task, frame))
    }

    /// The same for a packet that nothing translates.
    pub(super) fn find_owner(&mut self, context: &mut Context<'_>, frame: &[u8]) -> Result<(), Ending> {
        let Some((one, other)) = hosts(&frame[ETHERNET..]) else { return Ok(()) };
        let owner = self.translator.owner_between(context.tables.hash_seed, one, other);
        if self.translator.is(owner) {
            return Ok(());
        }
        Err(context.pass_on(self.translator.peer(owner), Task::All, frame))
    }
}
