//! The ring between a worker and whoever captures: one producer, one consumer, records of whole words.
//!
//! The producer never waits: what finds no room is counted by port, and lost. Words are plain stores
//! and loads, shown by one store with Release, so that no locked instruction is needed.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::tables::PortId;

/// Words of a record's header.
pub(super) const HEADER: usize = 4;

/// Bytes of a word.
const WORD: usize = 8;

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

struct Shared {
    words: Box<[AtomicU64]>,
    /// Words written, ever; stored by the producer.
    written: Line,
    /// Words read, ever; stored by the consumer.
    read: Line,
    /// Records that found no room, by port.
    lost: Box<[AtomicU64]>,
}

impl Shared {
    fn word(&self, at: u64) -> &AtomicU64 {
        // The length is a power of two.
        &self.words[at as usize & (self.words.len() - 1)]
    }
}

/// The worker's end.
pub struct Producer {
    shared: Arc<Shared>,
    written: u64,
    read: u64,
}

/// The other end.
pub struct Consumer {
    shared: Arc<Shared>,
    read: u64,
}

/// A ring for records of `bytes` bytes in all, rounded up to a power of two, from ports with numbers
/// below `ports`.
pub fn ring(bytes: usize, ports: usize) -> (Producer, Consumer) {
    let words = (bytes / WORD).next_power_of_two().max(2 * HEADER);
    let zeroes = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
    let shared = Arc::new(Shared {
        words: zeroes(words),
        written: Line::default(),
        read: Line::default(),
        lost: zeroes(ports),
    });
    (Producer { shared: shared.clone(), written: 0, read: 0 }, Consumer { shared, read: 0 })
}

impl Producer {
    /// Adds a record. `false` when there is no room for it.
    pub(super) fn push(&mut self, header: [u64; HEADER], bytes: &[u8]) -> bool {
        let shared = &*self.shared;
        let words = (1 + HEADER + bytes.len().div_ceil(WORD)) as u64;
        let size = shared.words.len() as u64;
        if size - (self.written - self.read) < words {
            self.read = shared.read.0.load(Ordering::Acquire);
            if size - (self.written - self.read) < words {
                return false;
            }
        }
        let mut at = self.written;
        let mut put = |word: u64| {
            shared.word(at).store(word, Ordering::Relaxed);
            at += 1;
        };
        put(bytes.len() as u64);
        header.into_iter().for_each(&mut put);
        let (whole, rest) = bytes.as_chunks::<WORD>();
        whole.iter().for_each(|chunk| put(u64::from_ne_bytes(*chunk)));
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            put(u64::from_ne_bytes(last));
        }
        self.written = at;
        shared.written.0.store(at, Ordering::Release);
        true
    }

    /// Counts a packet of `port`'s as lost.
    pub(super) fn lose(&mut self, port: PortId) {
        if let Some(lost) = self.shared.lost.get(usize::from(port)) {
            // Nobody else writes it.
            lost.store(lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

impl Consumer {
    /// Takes the oldest record, its bytes into `bytes`; none when there is none.
    pub(super) fn pop(&mut self, bytes: &mut Vec<u8>) -> Option<[u64; HEADER]> {
        let shared = &*self.shared;
        if shared.written.0.load(Ordering::Acquire) == self.read {
            return None;
        }
        let mut at = self.read;
        let mut get = || {
            at += 1;
            shared.word(at - 1).load(Ordering::Relaxed)
        };
        let len = get() as usize;
        let header = std::array::from_fn(|_| get());
        bytes.clear();
        for _ in 0..len.div_ceil(WORD) {
            bytes.extend_from_slice(&get().to_ne_bytes());
        }
        bytes.truncate(len);
        self.read = at;
        shared.read.0.store(at, Ordering::Release);
        Some(header)
    }

    /// How many packets of `port`'s have found no room, ever.
    pub fn lost(&self, port: PortId) -> u64 {
        self.shared.lost.get(usize::from(port)).map_or(0, |lost| lost.load(Ordering::Relaxed))
    }

    /// Whether the producer has gone.
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_every_length_cross_threads_whole() {
        let (mut to, mut from) = ring(4096, 1);
        const N: u64 = 20_000;
        let producer = std::thread::spawn(move || {
            for n in 0..N {
                let bytes: Vec<u8> = (0..n % 300).map(|k| (n + k) as u8).collect();
                while !to.push([n, 1, 2, n + 3], &bytes) {
                    std::thread::yield_now();
                }
            }
        });
        let mut bytes = Vec::new();
        for n in 0..N {
            let header = loop {
                match from.pop(&mut bytes) {
                    Some(header) => break header,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(header, [n, 1, 2, n + 3]);
            assert!(bytes.len() as u64 == n % 300);
            assert!(bytes.iter().zip(0..).all(|(byte, k)| *byte == (n + k) as u8));
        }
        producer.join().unwrap();
        assert!(from.pop(&mut bytes).is_none() && from.is_alone());
    }

    #[test]
    fn what_finds_no_room_is_lost_and_counted_and_the_rest_is_whole() {
        let (mut to, mut from) = ring(1024, 3);
        let mut room = 0;
        while to.push([room, 0, 0, 0], &[7; 50]) {
            room += 1;
        }
        to.lose(2);
        to.lose(9);
        assert_eq!((room, from.lost(2), from.lost(1), from.lost(9)), (1024 / 8 / 12, 1, 0, 0));
        let mut bytes = Vec::new();
        assert_eq!(from.pop(&mut bytes), Some([0; 4]));
        assert!(to.push([99, 0, 0, 0], &[8; 50]));
        let left = std::iter::from_fn(|| from.pop(&mut bytes)).map(|header| header[0]).collect::<Vec<_>>();
        assert_eq!(left, (1..room).chain([99]).collect::<Vec<_>>());
        assert_eq!(bytes, [8; 50]);
    }
}
