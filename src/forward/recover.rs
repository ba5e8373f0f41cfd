//! What becomes of a worker that meets a fault of its own: it goes on.
//!
//! A panic ends at the worker's edge. Its rings stay open, so that no device resets and no other
//! worker notices; flows and mappings stay as well. The packets of the sweep under way, of the ring
//! where it happened, are lost, since one of them may have been the reason, and so are the packets
//! that it held for neighbours; all are counted, so that the sum of the verdicts stays exact.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use super::{burst::Burst, used::Used, verdict::Verdict, worker::Worker};
use crate::stats::counters::PortBlock;

/// A worker that met a fault within this time of its start rests as long before it goes on, so that
/// a fault that comes again and again leaves the machine alone.
const REST: Duration = Duration::from_secs(1);

impl Worker {
    /// Works until it is told to stop, or a fault ends that. Gives whether it is over.
    pub(super) fn live(&mut self, burst: &mut Burst) -> bool {
        let began = Instant::now();
        // What a panic leaves half done is put right by `recover`.
        match catch_unwind(AssertUnwindSafe(|| self.work(burst))) {
            Ok(()) => return true,
            Err(cause) => self.report(burst, &*cause),
        }
        if began.elapsed() < REST {
            std::thread::sleep(REST);
        }
        // Should every sweep fail, it must still be possible to end it.
        let told = AssertUnwindSafe(|| self.bell.was_called() && !self.obey());
        catch_unwind(told).unwrap_or(false)
    }

    #[cold]
    fn report(&mut self, burst: &mut Burst, cause: &(dyn Any + Send)) {
        let lost = self.recover(burst);
        self.pulse.fault();
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        log::error!(
            "worker {} met a fault of its own ({text}); {lost} packets are lost, and it goes on; please report this with the lines above",
            self.index
        );
    }

    /// Puts right what a fault has left half done. Gives the number of packets lost.
    pub fn recover(&mut self, burst: &mut Burst) -> u64 {
        // Nobody waits for tables that are no longer read.
        self.reader.offline();
        if let Some(input) = self.at.take().and_then(|at| self.inputs.get_mut(at))
            && let Some(begun) = burst.unfinished()
        {
            input.queue.ring.advance(begun.taken);
            let counter = if input.wire { &input.block.rx_packets } else { &input.block.from_host };
            counter.add(u64::from(begun.taken - begun.done));
        }
        *burst = Burst::default();
        self.slow.restart(&self.blocks);
        self.used = Used::default();
        let mut lost = 0;
        for block in &self.blocks {
            let (came, ended) = (came(block), ended(block));
            // Of a burst whose packets are several ports', some may have been counted already.
            block.rx_packets.add(ended.saturating_sub(came));
            let unaccounted = came.saturating_sub(ended);
            block.count(Verdict::WorkerFault, unaccounted);
            lost += unaccounted;
        }
        lost
    }
}

/// Packets that came to this worker through the port.
fn came(block: &PortBlock) -> u64 {
    let all = [&block.rx_packets, &block.from_host, &block.taken_over];
    all.iter().fold(0u64, |sum, n| sum.wrapping_add(n.get()))
}

/// Those among them that have a verdict, wait, or were handed to another worker.
fn ended(block: &PortBlock) -> u64 {
    let elsewhere = block.handed_over.get().wrapping_add(block.held.get());
    block.verdicts.iter().fold(elsewhere, |sum, n| sum.wrapping_add(n.get()))
}
