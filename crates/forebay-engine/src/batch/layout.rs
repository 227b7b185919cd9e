//! Batches: the layout of a batch buffer, and the lease that gives the buffer back.
//!
//! A buffer holds, in this order: the sample ids, the dense fields, a table of value ranges for
//! each ragged field, and the values of all ragged fields in the order of gathering. They share one
//! area, because the total size of a record's fields can be estimated, and that of one field
//! cannot. If the values need more, the batch moves to larger private memory ([`Batch::grow`]);
//! offsets stay the same.
//!
//! A buffer is always writable and belongs to one rank. [`Batch`] is dropped when the last view of
//! it dies, in any order and on any thread; only then may the buffer be filled again. A forked
//! child gives nothing back: the memory belongs to the parent.

use std::alloc::{Layout as Allocation, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_host::fork;
use forebay_types::{Field, Layout};

use crate::batch::buffer_pool::BufferPool;
use crate::error::Error;
use crate::shm::region::{ALIGN, Region};

/// Alignment of a field in a batch \[bytes\]: a cache line, which also suits vector loads.
const FIELD_ALIGN: u64 = 64;

/// Position of a field in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldPlacement {
    /// `sample_bytes` per sample from `offset`.
    Dense {
        /// First byte in the buffer.
        offset: u64,
        /// Bytes per sample.
        sample_bytes: u64,
    },
    /// Values that begin at multiples of `item_bytes`, anywhere among those of the ragged fields.
    Ragged {
        /// Offset of the table in the buffer. It holds, for each sample of the batch, start and end
        /// of its value from the start of the buffer (two u64).
        table: u64,
        /// Bytes of an element.
        item_bytes: u64,
    },
}

/// Size of a table entry \[bytes\]: start and end.
pub(crate) const ENTRY_BYTES: u64 = 16;

/// The layout of a batch buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLayout {
    /// Samples per batch.
    pub batch_size: u64,
    /// One placement per field.
    pub places: Vec<FieldPlacement>,
    /// Offset of the values of the ragged fields; they may fill the rest of the buffer.
    pub values: u64,
    /// Size of the buffer \[bytes\], a multiple of the page.
    pub bytes: u64,
}

impl BatchLayout {
    /// Lays out the ids (at 0) and the fields, with `ragged_bytes` for all ragged ones together.
    ///
    /// `None` if the sizes overflow.
    pub fn new(fields: &[Field], batch_size: u64, ragged_bytes: u64) -> Option<Self> {
        let mut end = batch_size.checked_mul(8)?;
        let mut reserve = |bytes: u64| -> Option<u64> {
            let start = end.checked_next_multiple_of(FIELD_ALIGN)?;
            end = start.checked_add(bytes)?;
            Some(start)
        };
        let mut places = Vec::with_capacity(fields.len());
        let mut gaps_bytes = 0;
        for field in fields {
            places.push(match field.layout {
                Layout::Dense(_) => {
                    let sample_bytes = field.sample_bytes()?;
                    FieldPlacement::Dense {
                        offset: reserve(sample_bytes.checked_mul(batch_size)?)?,
                        sample_bytes,
                    }
                }
                Layout::Ragged => {
                    let item_bytes = field.dtype.item_bytes() as u64;
                    gaps_bytes += (item_bytes - 1) * batch_size;
                    FieldPlacement::Ragged {
                        table: reserve(batch_size.checked_mul(ENTRY_BYTES)?)?,
                        item_bytes,
                    }
                }
            });
        }
        let values = reserve(ragged_bytes.checked_add(gaps_bytes)?)?;
        Some(Self { batch_size, places, values, bytes: end.checked_next_multiple_of(ALIGN)? })
    }

    /// The same layout, extended to values up to this byte of the buffer.
    fn with_values_until(&self, end: u64) -> Self {
        Self { bytes: end.next_multiple_of(ALIGN), ..self.clone() }
    }

    /// Whether any field is ragged.
    pub fn is_ragged(&self) -> bool {
        self.places.iter().any(|place| matches!(place, FieldPlacement::Ragged { .. }))
    }
}

/// Private memory of the process, aligned like the region's.
struct Private {
    start: NonNull<u8>,
    allocation: Allocation,
}

impl Private {
    fn new(bytes: u64) -> Self {
        let allocation = Allocation::from_size_align(bytes.max(ALIGN) as usize, ALIGN as usize)
            .expect("a batch layout's size was checked");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(allocation) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(allocation)), allocation }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.allocation) }
    }
}

enum Memory {
    Pooled(usize),
    Private(Private),
}

/// The buffers of a rank.
pub struct Buffers {
    region: Arc<Region>,
    local_rank: usize,
    /// The pool that tracks which of them are free.
    pub ring: BufferPool<Batch, Error>,
    generation: u64,
}

impl Buffers {
    /// The buffers of `local_rank` in `region`, all free.
    pub fn new(region: Arc<Region>, local_rank: usize) -> Arc<Self> {
        let ring = BufferPool::new(region.layout().buffers);
        Arc::new(Self { region, local_rank, ring, generation: fork::generation() })
    }
}

/// A batch that is filled or being filled; dropping it gives its buffer back.
pub struct Batch {
    buffers: Arc<Buffers>,
    memory: Memory,
    layout: Arc<BatchLayout>,
    samples: usize,
}

impl Batch {
    /// Memory for a batch: the pool's buffer if there is one that is large enough, else private
    /// memory.
    ///
    /// Gives a buffer that is too small back at once.
    pub(crate) fn new(
        buffers: &Arc<Buffers>,
        buffer: Option<usize>,
        layout: Arc<BatchLayout>,
        samples: usize,
    ) -> Self {
        let fits = layout.bytes <= buffers.region.layout().buffer_bytes;
        let memory = match buffer {
            Some(number) if fits => Memory::Pooled(number),
            Some(number) => {
                buffers.ring.give_back(number);
                Memory::Private(Private::new(layout.bytes))
            }
            None => Memory::Private(Private::new(layout.bytes)),
        };
        Self { buffers: Arc::clone(buffers), memory, layout, samples }
    }

    fn start(&self) -> *mut u8 {
        match &self.memory {
            Memory::Pooled(number) => self.buffers.region.buffer(self.buffers.local_rank, *number),
            Memory::Private(private) => private.start.as_ptr(),
        }
    }

    /// Samples in the batch; another number than the batch size only at the end of an epoch with
    /// `last_batch="partial"`.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The layout of the buffer.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    pub(crate) fn shared_layout(&self) -> Arc<BatchLayout> {
        Arc::clone(&self.layout)
    }

    /// Whether the batch lies in private memory of the process.
    pub fn is_private(&self) -> bool {
        matches!(self.memory, Memory::Private(_))
    }

    /// Address of the byte at `offset`, valid as long as the batch.
    pub fn address(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.layout.bytes, "offset {offset} in a buffer of {} bytes", self.layout.bytes);
        // SAFETY: inside the buffer by the assertion.
        unsafe { self.start().add(offset as usize) }
    }

    /// The range of a sample's value in the buffer, from the `table` of a ragged field.
    pub fn value(&self, table: u64, sample: u64) -> Range<u64> {
        assert!(sample < self.layout.batch_size);
        let entry = self.address(table + sample * ENTRY_BYTES);
        // SAFETY: the table has an entry for every sample, all inside the buffer, written when the
        // batch was gathered.
        let [start, end] = unsafe { entry.cast::<[[u8; 8]; 2]>().read() }.map(u64::from_ne_bytes);
        assert!(start <= end && end <= self.layout.bytes, "a value was written");
        start..end
    }

    /// Moves the batch to private memory that holds values up to byte `end` of the buffer, and at
    /// least twice the previous values, so that a batch does not move for each sample.
    pub(crate) fn grow(&mut self, end: u64) {
        let doubled = self.layout.bytes + (self.layout.bytes - self.layout.values);
        let layout = Arc::new(self.layout.with_values_until(end.max(doubled)));
        let mut grown = Self::new(&self.buffers, None, layout, self.samples);
        let filled = self.bytes_mut();
        grown.bytes_mut()[..filled.len()].copy_from_slice(filled);
        // This drops the old batch, which gives its buffer back.
        *self = grown;
    }

    /// The whole buffer.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is `layout.bytes` long and this batch is its only holder until it is
        // delivered.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.layout.bytes as usize) }
    }
}

// SAFETY: the memory belongs to the batch alone until it is dropped; nothing in it is tied to a
// thread.
unsafe impl Send for Batch {}
// SAFETY: a shared batch only returns addresses; code that writes through them justifies it.
unsafe impl Sync for Batch {}

impl Drop for Batch {
    fn drop(&mut self) {
        if fork::in_forked_child(self.buffers.generation) {
            return;
        }
        if let Memory::Pooled(number) = self.memory {
            self.buffers.ring.give_back(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Dtype;

    #[test]
    fn fields_lie_one_after_the_other_on_cache_lines() {
        let field = |name: &str, dtype, layout| Field::new(name, dtype, layout);
        let fields = [
            field("image", Dtype::Uint8, Layout::Dense(vec![3, 32, 32])),
            field("label", Dtype::Int64, Layout::Dense(vec![])),
            field("text", Dtype::Uint8, Layout::Ragged),
            field("numbers", Dtype::Int64, Layout::Ragged),
        ];
        let layout = BatchLayout::new(&fields, 10, 1000).unwrap();
        assert_eq!(
            layout.places,
            [
                FieldPlacement::Dense { offset: 128, sample_bytes: 3072 },
                FieldPlacement::Dense { offset: 128 + 30720, sample_bytes: 8 },
                FieldPlacement::Ragged { table: 30976, item_bytes: 1 },
                FieldPlacement::Ragged { table: 31168, item_bytes: 8 },
            ]
        );
        assert_eq!(layout.values, 31360);
        assert_eq!(layout.bytes, 32768, "room for 1000 bytes and for gaps before the numbers, up to a page");
        assert!(BatchLayout::new(&fields, u64::MAX / 8, 0).is_none());
    }
}
