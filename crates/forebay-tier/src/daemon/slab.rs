//! The slots of a slab, and what they hold.

use crate::source::identity::SourceKey;

#[derive(Default)]
pub(super) struct Slab {
    pub(super) slots: Vec<Slot>,
    pub(super) free: u16,
    /// Slots that are reserved on the device, from the first on.
    pub(super) reserved: u16,
    /// The file was shorter than its slots when it was opened.
    pub(super) is_truncated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    /// It was given to this chunk of a source, which alone is ever written there.
    Holds(SourceKey, u64),
}

impl Slab {
    pub(super) fn new(slots: u16) -> Self {
        Self { slots: vec![Slot::Free; usize::from(slots)], free: slots, ..Self::default() }
    }

    pub(super) fn slots(&self) -> u16 {
        self.slots.len() as u16
    }

    pub(super) fn get(&self, slot: u16) -> Option<Slot> {
        self.slots.get(usize::from(slot)).copied()
    }

    /// Changes a slot, if the slab has it.
    pub(super) fn set(&mut self, slot: u16, now: Slot) {
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            self.free -= u16::from(*slot == Slot::Free);
            self.free += u16::from(now == Slot::Free);
            *slot = now;
        }
    }

    /// Chunks that its slots hold.
    pub(super) fn held(&self) -> impl Iterator<Item = (SourceKey, u64)> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Holds(key, chunk) => Some((*key, *chunk)),
            Slot::Free => None,
        })
    }

    pub(super) fn first_free(&self) -> Option<u16> {
        self.slots.iter().position(|slot| *slot == Slot::Free).map(|slot| slot as u16)
    }

    /// Slots up to the last one that was given away.
    pub(super) fn used_slots(&self) -> u16 {
        self.slots.iter().rposition(|slot| *slot != Slot::Free).map_or(0, |slot| slot as u16 + 1)
    }

    pub(super) fn taken_slots(&self) -> u64 {
        u64::from(self.reserved)
    }
}
