//! The device numbers that records refer to: there are few, and a record has room for 5 bits.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Devices of a table; the first one is 0. More than prefixes and levels together.
pub const MAX_DEVICES: usize = 32;

/// The devices of a table. The first one is 0, which no device has, so a free place holds 0.
///
/// The daemon alone adds devices, before it stores the state of the record that needs them
/// (Release). None is ever removed.
#[derive(Clone, Copy)]
pub struct Devices<'a>(&'a [AtomicU64]);

impl<'a> Devices<'a> {
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// The device (`st_dev`) at a place; 0 where there is none.
    pub fn at(&self, place: usize) -> u64 {
        self.0.get(place % MAX_DEVICES).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The place of a device, which is added if it is new; `None` if all places are taken.
    pub fn place_of(&self, device: u64) -> Option<u64> {
        if device == 0 {
            return Some(0);
        }
        for (word, place) in self.0.iter().zip(0..).skip(1) {
            let found = word.load(Ordering::Relaxed);
            if found == 0 {
                word.store(device, Ordering::Relaxed);
            }
            if found == 0 || found == device {
                return Some(place);
            }
        }
        None
    }
}
