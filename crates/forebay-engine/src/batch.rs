//! Batches: what lies where in a batch buffer, and the lease that gives the buffer back.
//!
//! A buffer holds the sample ids, the dense fields one after the other, and for every ragged field offsets and packed
//! bytes. It is always writable and belongs to one rank. [`Batch`] is dropped when the last view of it dies, in any
//! order and on any thread; only then is the buffer filled again. In a forked child nothing is given back: the memory
//! is the parent's.

use std::alloc::{Layout as Allocation, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_types::{Dtype, Field, Layout};

use crate::error::Error;
use crate::node::fork;
use crate::region::{ALIGN, Region};
use crate::ring::Ring;

/// Alignment of a field in a batch \[bytes\]: a cache line, and what vector loads like best.
const FIELD_ALIGN: u64 = 64;

/// Where a field lies in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `sample_bytes` per sample from `offset`.
    Dense {
        /// First byte in the buffer.
        offset: u64,
        /// Bytes per sample.
        sample_bytes: u64,
    },
    /// `batch + 1` offsets (u64) and up to `capacity` packed bytes.
    Ragged {
        /// Where the offsets begin in the buffer.
        offsets: u64,
        /// Where the packed bytes begin in the buffer.
        data: u64,
        /// Room for packed bytes.
        capacity: u64,
    },
}

/// Most bytes that a byte of a record becomes in a ragged field of this type: integers of 64 bits are written in one byte
/// where they are small (protobuf), everything else as it is.
fn growth(dtype: Dtype) -> u64 {
    if dtype == Dtype::Int64 { dtype.item_bytes() as u64 } else { 1 }
}

/// The layout of a batch buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLayout {
    /// Samples per batch.
    pub batch_size: u64,
    /// One place per field.
    pub places: Vec<Place>,
    /// Size of the buffer \[bytes\], a multiple of the page.
    pub bytes: u64,
}

impl BatchLayout {
    /// Lays out the ids (at 0) and the fields; ragged ones get room for what records of `ragged_bytes` bytes decode to.
    ///
    /// `None` where the sizes overflow.
    pub fn new(fields: &[Field], batch_size: u64, ragged_bytes: u64) -> Option<Self> {
        let mut end = batch_size.checked_mul(8)?;
        let mut reserve = |bytes: u64| -> Option<u64> {
            let start = end.checked_next_multiple_of(FIELD_ALIGN)?;
            end = start.checked_add(bytes)?;
            Some(start)
        };
        let mut places = Vec::with_capacity(fields.len());
        for field in fields {
            places.push(match field.layout {
                Layout::Dense(_) => {
                    let sample_bytes = field.sample_bytes()?;
                    Place::Dense { offset: reserve(sample_bytes.checked_mul(batch_size)?)?, sample_bytes }
                }
                Layout::Ragged => {
                    let offsets = reserve((batch_size + 1).checked_mul(8)?)?;
                    let capacity = ragged_bytes.checked_mul(growth(field.dtype))?;
                    Place::Ragged { offsets, data: reserve(capacity)?, capacity }
                }
            });
        }
        Some(Self { batch_size, places, bytes: end.checked_next_multiple_of(ALIGN)? })
    }

    /// Whether any field is ragged.
    pub fn is_ragged(&self) -> bool {
        self.places.iter().any(|place| matches!(place, Place::Ragged { .. }))
    }
}

/// Memory of the process's own, aligned like the region's.
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
    Ring(usize),
    Private(Private),
}

/// The buffers of a rank.
pub struct Buffers {
    region: Arc<Region>,
    local_rank: usize,
    /// The ring that says which of them are free.
    pub ring: Ring<Batch, Error>,
    generation: u64,
}

impl Buffers {
    /// The buffers of `local_rank` in `region`, all free.
    pub fn new(region: Arc<Region>, local_rank: usize) -> Arc<Self> {
        let ring = Ring::new(region.layout().buffers);
        Arc::new(Self { region, local_rank, ring, generation: fork::generation() })
    }
}

/// A filled (or being filled) batch; giving it up gives its buffer back.
pub struct Batch {
    buffers: Arc<Buffers>,
    memory: Memory,
    layout: Arc<BatchLayout>,
    samples: usize,
}

impl Batch {
    /// Memory for a batch: the ring's buffer where there is one and it is large enough, else private memory.
    ///
    /// A ring buffer that is too small goes back at once.
    pub(crate) fn new(
        buffers: &Arc<Buffers>,
        buffer: Option<usize>,
        layout: Arc<BatchLayout>,
        samples: usize,
    ) -> Self {
        let fits = layout.bytes <= buffers.region.layout().buffer_bytes;
        let memory = match buffer {
            Some(number) if fits => Memory::Ring(number),
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
            Memory::Ring(number) => self.buffers.region.buffer(self.buffers.local_rank, *number),
            Memory::Private(private) => private.start.as_ptr(),
        }
    }

    /// Samples in the batch; fewer than the batch size only at the end of an epoch with `last="short"`.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// What lies where.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    pub(crate) fn shared_layout(&self) -> Arc<BatchLayout> {
        Arc::clone(&self.layout)
    }

    /// Whether the batch lies in memory of the process's own.
    pub fn is_private(&self) -> bool {
        matches!(self.memory, Memory::Private(_))
    }

    /// Address of the byte at `offset`, valid as long as the batch.
    pub fn address(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.layout.bytes, "offset {offset} in a buffer of {} bytes", self.layout.bytes);
        // SAFETY: inside the buffer by the assertion.
        unsafe { self.start().add(offset as usize) }
    }

    /// Where the packed bytes of sample `sample` end, from the table at `offsets` of a ragged place.
    pub fn packed_end(&self, offsets: u64, sample: u64) -> u64 {
        assert!(sample < self.layout.batch_size);
        let entry = self.address(offsets + (sample + 1) * 8);
        // SAFETY: the table has an entry behind that of every sample, all inside the buffer, written when the batch was
        // gathered.
        let bytes = unsafe { entry.cast::<[u8; 8]>().read() };
        u64::from_ne_bytes(bytes)
    }

    /// The whole buffer.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is `layout.bytes` long and this batch is its only holder until it is handed out.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.layout.bytes as usize) }
    }
}

// SAFETY: the memory belongs to the batch alone until it is dropped; nothing in it is tied to a thread.
unsafe impl Send for Batch {}
// SAFETY: a shared batch only tells addresses; who writes through them says why he may.
unsafe impl Sync for Batch {}

impl Drop for Batch {
    fn drop(&mut self) {
        if fork::in_forked_child(self.buffers.generation) {
            return;
        }
        if let Memory::Ring(number) = self.memory {
            self.buffers.ring.give_back(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                Place::Dense { offset: 128, sample_bytes: 3072 },
                Place::Dense { offset: 128 + 30720, sample_bytes: 8 },
                Place::Ragged { offsets: 30976, data: 31104, capacity: 1000 },
                Place::Ragged { offsets: 32128, data: 32256, capacity: 8000 },
            ]
        );
        assert_eq!(layout.bytes, 40960);
        assert!(BatchLayout::new(&fields, u64::MAX / 8, 0).is_none());
    }
}
