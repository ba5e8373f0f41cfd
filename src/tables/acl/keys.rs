//! The keys of a burst, word by word: for each word of a key, that of every packet. So eight packets
//! are compared with one entry as easily as one packet with eight entries.

/// Packets that are classified together at most.
pub const TOGETHER: usize = 32;

/// The keys of up to [`TOGETHER`] packets of one family.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Keys<const K: usize> {
    pub(super) words: [[u32; TOGETHER]; K],
}

impl<const K: usize> Default for Keys<K> {
    fn default() -> Self {
        Self { words: [[0; TOGETHER]; K] }
    }
}

impl<const K: usize> Keys<K> {
    /// Sets the key of packet `k`, which is below [`TOGETHER`].
    #[inline(always)]
    pub fn set(&mut self, k: usize, key: [u32; K]) {
        for (word, of_packet) in self.words.iter_mut().zip(key) {
            word[k % TOGETHER] = of_packet;
        }
    }

    /// The key of packet `k`.
    #[inline(always)]
    pub fn get(&self, k: usize) -> [u32; K] {
        self.words.each_ref().map(|word| word[k % TOGETHER])
    }
}
