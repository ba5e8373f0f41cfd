//! The publication of tables under loom: every interleaving of one publisher and its readers that
//! the memory model allows, up to a bound on preemptions.
//!
//!     RUSTFLAGS="--cfg loom" cargo test --manifest-path loom/Cargo.toml
//!
//! The tables hold a loom cell, so loom itself reports a read that can meet a change.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use publication_model::publish::{Publisher, Reader};

/// Tables that notice being read and changed at the same time.
struct Tables(UnsafeCell<u64>);

// SAFETY: that no access races is what loom checks here.
unsafe impl Sync for Tables {}

impl Tables {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn add(&mut self) {
        // SAFETY: loom fails the test if anybody else has the cell.
        self.0.with_mut(|n| unsafe { *n += 1 });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom fails the test if somebody changes the cell.
        self.0.with(|n| unsafe { *n })
    }
}

// The bounds are what a core explores in half a minute; for two readers a second preemption takes longer
// than that.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn sweep(reader: &mut Reader<Tables>, last: &mut u64) {
    let n = reader.sweep().read();
    assert!(n >= *last, "tables went back");
    *last = n;
    reader.quiescent();
}

#[test]
fn a_reader_never_meets_a_change() {
    check(3, || {
        let (mut publisher, mut readers) = Publisher::new(Tables::new, 1);
        let mut reader = readers.remove(0);
        let thread = thread::spawn(move || {
            let mut last = 0;
            sweep(&mut reader, &mut last);
            sweep(&mut reader, &mut last);
        });
        publisher.publish(Tables::add);
        publisher.publish(Tables::add);
        assert_eq!(publisher.tables().read(), 2);
        thread.join().unwrap();
    });
}

#[test]
fn a_reader_that_comes_back_never_meets_a_change() {
    check(3, || {
        let (mut publisher, mut readers) = Publisher::new(Tables::new, 1);
        let mut reader = readers.remove(0);
        let thread = thread::spawn(move || {
            let mut last = 0;
            sweep(&mut reader, &mut last);
            reader.offline();
            sweep(&mut reader, &mut last);
            reader.offline();
        });
        publisher.publish(Tables::add);
        publisher.publish(Tables::add);
        thread.join().unwrap();
    });
}

#[test]
fn two_readers_never_meet_a_change() {
    check(1, || {
        let (mut publisher, readers) = Publisher::new(Tables::new, 2);
        let threads: Vec<_> = readers
            .into_iter()
            .enumerate()
            .map(|(n, mut reader)| {
                thread::spawn(move || {
                    let mut last = 0;
                    sweep(&mut reader, &mut last);
                    if n == 0 {
                        reader.offline();
                    }
                })
            })
            .collect();
        publisher.publish(Tables::add);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn what_a_stuck_reader_delays_is_made_up_for_safely() {
    check(3, || {
        let (mut publisher, mut readers) = Publisher::new(Tables::new, 1);
        let mut reader = readers.remove(0);
        let thread = thread::spawn(move || {
            let mut last = 0;
            sweep(&mut reader, &mut last);
            reader.offline();
            sweep(&mut reader, &mut last);
        });
        let limit = std::time::Duration::ZERO;
        // As the keeper does: what cannot be changed yet waits.
        let (mut owed, mut waiting) = (0, 0);
        for _ in 0..2 {
            waiting += 1;
            if let Ok(tables) = publisher.idle(limit) {
                (0..owed + waiting).for_each(|_| tables.add());
                publisher.switch();
                (owed, waiting) = (waiting, 0);
            }
        }
        thread.join().unwrap();
        let tables = publisher.idle(limit).expect("nobody reads any more");
        (0..owed + waiting).for_each(|_| tables.add());
        publisher.switch();
        assert_eq!(publisher.tables().read(), 2);
    });
}
