//! How tables get from the keeper to the workers, without a lock on the workers' side.
//!
//! There are two instances of the tables. One is live: a seqlock holds its address and generation,
//! and a worker reads that once a sweep. The other is idle: the keeper changes it, publishes it,
//! waits until no worker reads the one that was live before, and repeats the change on that.
//!
//! Each worker has a cache line of its own, where it stores the generation that it has moved on
//! to. A worker that is about to block marks itself offline, and the keeper doesn't wait for it.
//! Coming back is the delicate step: the worker stores that it is online *before* it reads which
//! tables are live, the keeper publishes *before* it reads who is online, each with a sequentially
//! consistent fence in between. So at least one of them sees the other: either the keeper waits
//! for the worker, or the worker takes the new tables.

use std::cell::UnsafeCell;
use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::sync::{Arc, AtomicU64, Current, Descriptor, Ordering, fence, pause};

/// In a worker's line: reads nothing, and will look anew before it does.
const OFFLINE: u64 = u64::MAX;
/// In a worker's line: has come back and not moved on to any generation yet.
const RETURNING: u64 = 0;
/// The generation that the first tables have.
const FIRST: u64 = 1;

/// A worker's own cache line (two, since processors fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

struct Shared<T> {
    current: Current<T>,
    lines: Box<[Line]>,
    instances: [Box<UnsafeCell<T>>; 2],
}

// SAFETY: `&T` is given to any number of readers and `&mut T` only to the one publisher while no
// reader has the instance, so the rules are those of an RwLock<T>.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn instance(&self, index: usize) -> NonNull<T> {
        // SAFETY: UnsafeCell::get gives a pointer into the box, never null.
        unsafe { NonNull::new_unchecked(self.instances[index].get()) }
    }
}

/// The keeper's end.
pub struct Publisher<T> {
    shared: Arc<Shared<T>>,
    generation: u64,
    /// Which instance is not live.
    idle: usize,
    /// Whether a reader may still have the idle instance.
    draining: bool,
}

/// A worker's end. It begins offline; its first sweep brings it online.
pub struct Reader<T> {
    shared: Arc<Shared<T>>,
    line: usize,
    online: bool,
    generation: u64,
}

/// A reader has not moved on in time, so that the idle instance cannot be changed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// Its place in the list that [`Publisher::new`] gave.
    pub reader: usize,
}

impl<T: Send + Sync> Publisher<T> {
    /// Makes two instances, which must be alike, and `readers` readers.
    pub fn new(mut make: impl FnMut() -> T, readers: usize) -> (Self, Vec<Reader<T>>) {
        match Self::try_new(|| Ok::<T, std::convert::Infallible>(make()), readers) {
            Ok(both) => both,
            Err(never) => match never {},
        }
    }

    /// As [`Publisher::new`], where making an instance can fail.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn try_new<E>(
        mut make: impl FnMut() -> Result<T, E>,
        readers: usize,
    ) -> Result<(Self, Vec<Reader<T>>), E> {
        let instances = [Box::new(UnsafeCell::new(make()?)), Box::new(UnsafeCell::new(make()?))];
        // SAFETY: as in `Shared::instance`.
        let live = unsafe { NonNull::new_unchecked(instances[0].get()) };
        let shared = Arc::new(Shared {
            current: Current::new(Descriptor { generation: FIRST, tables: live }),
            lines: (0..readers).map(|_| Line(AtomicU64::new(OFFLINE))).collect(),
            instances,
        });
        let readers = (0..readers)
            .map(|line| Reader { shared: shared.clone(), line, online: false, generation: 0 })
            .collect();
        Ok((Self { shared, generation: FIRST, idle: 1, draining: false }, readers))
    }

    /// Makes a change and publishes it: `apply` is called once for each instance and must do the
    /// same both times. Waits as long as a reader takes to move on, and returns how long that was.
    /// The two instances must be alike.
    pub fn publish(&mut self, mut apply: impl FnMut(&mut T)) -> Duration {
        let earlier = self.wait(None).0;
        apply(self.idle_instance());
        self.switch();
        let waited = self.wait(None).0;
        apply(self.idle_instance());
        earlier + waited
    }

    /// The idle instance, to be changed, once no reader has it any more; waits for that at most for
    /// `limit`. With [`Publisher::switch`] this is what [`Publisher::publish`] does, for those who
    /// cannot wait for ever: what was changed before a switch has to be changed again, to the same
    /// effect, in the instance that this gives after it, and before the next switch.
    ///
    /// # Errors
    /// Which reader has not moved on.
    pub fn idle(&mut self, limit: Duration) -> Result<&mut T, Stuck> {
        match self.wait(Some(limit)).1 {
            Some(reader) => Err(Stuck { reader }),
            None => Ok(self.idle_instance()),
        }
    }

    /// Puts the idle instance in force, as it is now; readers take it with their next sweep.
    ///
    /// # Panics
    /// When a reader may still have it: [`Publisher::idle`] must have given it since the last call.
    pub fn switch(&mut self) {
        assert!(!self.draining, "the idle instance is still being read");
        // Under the seqlock stands nothing but the write, as readers wait for it.
        let descriptor =
            Descriptor { generation: self.generation + 1, tables: self.shared.instance(self.idle) };
        self.shared.current.write(descriptor);
        // Pairs with the fence in `Reader::online`.
        fence(Ordering::SeqCst);
        self.generation = descriptor.generation;
        self.idle = 1 - self.idle;
        self.draining = true;
    }

    /// The generation in force.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Which of the two instances is in force, 0 or 1; the other one is idle.
    pub fn live(&self) -> usize {
        1 - self.idle
    }

    /// The tables in force, which nobody changes while they are borrowed here.
    pub fn tables(&self) -> &T {
        // SAFETY: only `&mut self` makes a `&mut T`, and only of the idle instance.
        unsafe { self.shared.instance(1 - self.idle).as_ref() }
    }

    fn idle_instance(&mut self) -> &mut T {
        debug_assert!(!self.draining);
        // SAFETY: the instance is not live, and every reader has moved on from it or is offline,
        // and then looks at what is live before it reads again. `&mut self` keeps it exclusive.
        unsafe { self.shared.instance(self.idle).as_mut() }
    }

    /// Waits until every reader has moved on to the current generation or is offline. Gives the
    /// time that it took, and the reader that did not when the limit ran out.
    fn wait(&mut self, limit: Option<Duration>) -> (Duration, Option<usize>) {
        if !self.draining {
            return (Duration::ZERO, None);
        }
        let start = Instant::now();
        let mut round = 0;
        for (reader, line) in self.shared.lines.iter().enumerate() {
            // OFFLINE is above every generation.
            while line.0.load(Ordering::Acquire) < self.generation {
                if limit.is_some_and(|limit| start.elapsed() >= limit) {
                    return (start.elapsed(), Some(reader));
                }
                pause(round);
                round += 1;
            }
        }
        self.draining = false;
        (start.elapsed(), None)
    }
}

impl<T: Send + Sync> Reader<T> {
    /// Takes the tables in force, the same ones until the next call. One read of the seqlock.
    ///
    /// A reader that is offline comes online first.
    #[inline]
    pub fn sweep(&mut self) -> &T {
        if !self.online {
            self.online();
        }
        let descriptor = self.shared.current.read();
        if descriptor.generation != self.generation {
            self.generation = descriptor.generation;
            // The borrow of the tables taken before has ended, so they are given up already here
            // and the publisher waits no longer than for the rest of one sweep.
            self.line().store(descriptor.generation, Ordering::Release);
        }
        // SAFETY: this line shows at most the generation just read, so the publisher leaves the
        // instance alone until the line shows a later one; that takes `&mut self`, and so the end
        // of this borrow.
        unsafe { descriptor.tables.as_ref() }
    }

    /// Ends a sweep: one plain release store.
    #[inline]
    pub fn quiescent(&mut self) {
        if self.online {
            self.line().store(self.generation, Ordering::Release);
        }
    }

    /// Gives up the tables, before blocking: the publisher no longer waits for this reader.
    pub fn offline(&mut self) {
        self.online = false;
        self.line().store(OFFLINE, Ordering::Release);
    }

    /// Comes back. [`Reader::sweep`] does this by itself.
    pub fn online(&mut self) {
        if self.online {
            return;
        }
        self.line().store(RETURNING, Ordering::Relaxed);
        // Pairs with the fence in `Publisher::switch`: of the store above and the publisher's
        // write, at least one is seen by the other side.
        fence(Ordering::SeqCst);
        self.online = true;
        self.generation = self.shared.current.read().generation;
        self.line().store(self.generation, Ordering::Release);
    }

    /// The generation of the tables that the last sweep took; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    #[inline(always)]
    fn line(&self) -> &AtomicU64 {
        &self.shared.lines[self.line].0
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.shared.lines[self.line].0.store(OFFLINE, Ordering::Release);
    }
}

impl<T> fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("generation", &self.generation)
            .field("draining", &self.draining)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("line", &self.line)
            .field("online", &self.online)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_sweep_keeps_its_tables_and_the_next_one_takes_the_new() {
        let (mut publisher, mut readers) = Publisher::new(|| 1, 1);
        let reader = &mut readers[0];
        assert_eq!((*reader.sweep(), reader.generation()), (1, 1));
        *publisher.idle(Duration::ZERO).unwrap() += 1;
        publisher.switch();
        assert_eq!(publisher.idle(Duration::ZERO), Err(Stuck { reader: 0 }));
        assert_eq!((*reader.sweep(), reader.generation()), (2, 2));
        *publisher.idle(Duration::ZERO).unwrap() += 1;
        assert_eq!((*reader.sweep(), *publisher.tables(), publisher.generation()), (2, 2, 2));
    }

    #[test]
    fn a_stuck_reader_delays_changes_and_is_named() {
        let (mut publisher, mut readers) = Publisher::new(Vec::new, 2);
        readers[1].sweep();
        publisher.idle(Duration::ZERO).unwrap().push(0);
        publisher.switch();
        for _ in 0..5 {
            let start = Instant::now();
            let limit = Duration::from_millis(2);
            assert_eq!(publisher.idle(limit).err(), Some(Stuck { reader: 1 }));
            assert!(start.elapsed() >= limit);
        }
        assert_eq!(readers[1].sweep(), &[0]);
        publisher.idle(Duration::ZERO).unwrap().extend([0, 1, 2, 3]);
        publisher.switch();
        assert_eq!(readers[1].sweep(), &[0, 1, 2, 3]);
        publisher.idle(Duration::ZERO).unwrap().extend([1, 2, 3]);
        readers[1].offline();
        publisher.publish(|v| v.push(4));
        assert_eq!((publisher.tables(), publisher.generation()), (&vec![0, 1, 2, 3, 4], 4));
    }

    #[test]
    #[should_panic(expected = "still being read")]
    fn what_is_still_being_read_is_not_put_in_force() {
        let (mut publisher, mut readers) = Publisher::new(|| 0, 1);
        readers[0].sweep();
        *publisher.idle(Duration::ZERO).unwrap() = 1;
        publisher.switch();
        publisher.switch();
    }

    #[test]
    fn nobody_waits_for_readers_that_are_offline_or_gone() {
        let (mut publisher, mut readers) = Publisher::new(|| 0, 3);
        readers[0].sweep();
        readers[1].sweep();
        readers[1].offline();
        readers[1].quiescent();
        readers.remove(0);
        *publisher.idle(Duration::ZERO).unwrap() = 7;
        publisher.switch();
        assert!(publisher.idle(Duration::ZERO).is_ok());
        readers[0].online();
        assert_eq!((readers[0].generation(), *readers[0].sweep()), (2, 7));
    }

    /// Tables whose words are all alike unless somebody is changing them.
    type Words = [u64; 512];

    fn read_all(reader: &mut Reader<Words>, stop: &AtomicBool, parks: bool) -> u64 {
        let (mut sweeps, mut last) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let words = reader.sweep();
            let first = words[0];
            assert!(words.iter().all(|&word| word == first), "half-made tables");
            assert!(first >= last, "tables went back");
            last = first;
            sweeps += 1;
            reader.quiescent();
            if parks && sweeps % 7 == 0 {
                reader.offline();
                if sweeps % 1024 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
        sweeps
    }

    #[test]
    fn readers_never_see_tables_being_changed() {
        let (mut publisher, readers) = Publisher::new(|| [0; 512], 4);
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads: Vec<_> = readers
                .into_iter()
                .enumerate()
                .map(|(n, mut reader)| scope.spawn(move || read_all(&mut reader, stop, n % 2 == 1)))
                .collect();
            let (start, mut longest) = (Instant::now(), Duration::ZERO);
            while start.elapsed() < Duration::from_secs(2) {
                let waited = publisher.publish(|words| {
                    words.iter_mut().for_each(|word| *word += 1);
                });
                longest = longest.max(waited);
            }
            stop.store(true, Ordering::Relaxed);
            let sweeps: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let publications = publisher.generation() - FIRST;
            println!("{publications} publications, longest wait {longest:?}, sweeps {sweeps:?}");
            assert!(publications > 100 && sweeps.iter().all(|&n| n > 100));
        });
    }

    #[test]
    fn a_writer_stopped_mid_write_stalls_readers_no_longer_than_it_stops() {
        let (publisher, mut readers) = Publisher::new(|| [0; 512], 1);
        let stop = &AtomicBool::new(false);
        let mut reader = readers.remove(0);
        let stall = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let mut longest = Duration::ZERO;
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    reader.sweep();
                    longest = longest.max(start.elapsed());
                    reader.quiescent();
                }
                longest
            });
            // More than once: on a busy machine the reader may lose its core just then, and see little.
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(10));
                publisher.shared.current.stop_mid_write(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap()
        });
        println!("a writer stopped for 10 ms stalled a sweep for {stall:?}");
        assert!(stall >= Duration::from_millis(9), "the stop was not noticed: {stall:?}");
        assert!(stall < Duration::from_millis(500), "{stall:?}");
    }
}
