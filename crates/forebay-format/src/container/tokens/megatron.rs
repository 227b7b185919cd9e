//! The index of a pair of files of Megatron-LM: which sequences of tokens the data file has, and
//! which documents they make.
//!
//! Magic, version, type, numbers of sequences and of documents, then three arrays: the lengths and
//! places of the sequences, and the first sequence of each document. Source: Megatron-LM's
//! `indexed_dataset.py`; the layout to the byte is in `docs/formats/tokens.md`.

use std::fs;
use std::ops::Range;
use std::time::UNIX_EPOCH;

use forebay_types::Dtype;

use crate::Error;
use crate::file::Input;

/// First bytes of an index.
const MAGIC: [u8; 9] = *b"MMIDIDX\0\0";
const VERSION: u64 = 1;
/// Magic, version, code of the type, and two numbers \[bytes\].
const HEADER_BYTES: u64 = 34;

/// Bytes of the arrays that are read at once.
const BLOCK_BYTES: usize = 1 << 20;

/// The index beside a data file.
#[derive(Debug)]
pub(super) struct Pair {
    index: Input,
    dtype: Dtype,
    sequences: u64,
    /// Entries of the array of documents: one more than there are documents.
    bounds: u64,
    data_bytes: u64,
    /// Header of the index, its size and its last change.
    state: Vec<u8>,
}

impl Pair {
    /// Opens the index of a data file, if there is one.
    pub(super) fn open(data: &Input) -> Result<Option<Self>, Error> {
        let path = data.path().with_extension("idx");
        if path == data.path() || !path.is_file() {
            return Ok(None);
        }
        let index = Input::open(&path)?;
        let mut header = [0; HEADER_BYTES as usize];
        if index.bytes() < HEADER_BYTES {
            return Err(index.corrupt(0, "index of Megatron-LM", "34 bytes or more", index.bytes()));
        }
        index.read(0, &mut header, "header")?;
        if header[..9] != MAGIC {
            let found = format!("{:02x?}", &header[..9]);
            return Err(index.corrupt(0, "magic", format!("{MAGIC:02x?} (an index of Megatron-LM)"), found));
        }
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        if number(9) != VERSION {
            return Err(index.corrupt(9, "version", VERSION, number(9)));
        }
        let dtype = dtype_of(header[17])
            .ok_or_else(|| index.corrupt(17, "code of the type of tokens", "1 to 8", header[17]))?;
        let (sequences, bounds) = (number(18), number(26));
        let arrays = sequences.checked_mul(12).and_then(|bytes| bytes.checked_add(bounds.checked_mul(8)?));
        let least = arrays.and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        if least.is_none_or(|least| least > index.bytes()) {
            let expected = format!("room for {sequences} sequences and {bounds} bounds of documents");
            return Err(index.corrupt(
                18,
                "length of the index",
                expected,
                format!("{} bytes", index.bytes()),
            ));
        }
        let changed = fs::metadata(&path).and_then(|found| found.modified()).ok();
        let since = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let mut state = super::hash(&header);
        state.extend(index.bytes().to_le_bytes());
        state.extend(since.as_nanos().to_le_bytes());
        Ok(Some(Self { index, dtype, sequences, bounds, data_bytes: data.bytes(), state }))
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// What changes when the index does.
    pub(super) fn state(&self) -> Vec<u8> {
        self.state.clone()
    }

    pub(super) fn check_unchanged(&self) -> Result<(), Error> {
        self.index.check_unchanged()
    }

    /// The tokens of each document, ascending; empty documents are left out.
    pub(super) fn documents(&self, item_bytes: u64) -> Result<Vec<Range<u64>>, Error> {
        let ends = self.sequence_ends(item_bytes)?;
        let start_of = |sequence: u64| if sequence == 0 { 0 } else { ends[sequence as usize - 1] };
        let mut documents = Vec::new();
        let mut before = 0;
        let first = HEADER_BYTES + 12 * self.sequences;
        self.each::<8>(first, self.bounds, "bounds of documents", |number, bytes| {
            let bound = i64::from_le_bytes(bytes);
            let right = u64::try_from(bound).ok().filter(|bound| (before..=self.sequences).contains(bound));
            let Some(bound) = right.filter(|bound| number > 0 || *bound == 0) else {
                let expected = format!("{before} to {}", self.sequences);
                return Err(self.index.corrupt(first + 8 * number, "bound of a document", expected, bound));
            };
            let tokens = start_of(before)..start_of(bound);
            if !tokens.is_empty() {
                documents.push(tokens);
            }
            before = bound;
            Ok(())
        })?;
        if before != self.sequences {
            let at = first + 8 * self.bounds.saturating_sub(1);
            return Err(self.index.corrupt(at, "last bound of documents", self.sequences, before));
        }
        Ok(documents)
    }

    /// The end of each sequence [tokens from the start]. Sequences follow each other without gaps.
    fn sequence_ends(&self, item_bytes: u64) -> Result<Vec<u64>, Error> {
        let mut ends = Vec::new();
        let mut end = 0_u64;
        self.each::<4>(HEADER_BYTES, self.sequences, "lengths of sequences", |number, bytes| {
            let length = i32::from_le_bytes(bytes);
            let next = u64::try_from(length).ok().and_then(|length| end.checked_add(length));
            let room = self.data_bytes / item_bytes;
            let Some(next) = next.filter(|next| *next <= room) else {
                let expected = format!("0 to {}, the tokens that are left", room - end);
                return Err(self.index.corrupt(
                    HEADER_BYTES + 4 * number,
                    "length of a sequence",
                    expected,
                    length,
                ));
            };
            end = next;
            ends.push(end);
            Ok(())
        })?;
        if end != self.data_bytes / item_bytes {
            let expected = format!("{}, those of the data file", self.data_bytes / item_bytes);
            return Err(self.index.corrupt(HEADER_BYTES, "tokens of all sequences", expected, end));
        }
        let first = HEADER_BYTES + 4 * self.sequences;
        self.each::<8>(first, self.sequences, "places of sequences", |number, bytes| {
            let place = i64::from_le_bytes(bytes);
            let expected = if number == 0 { 0 } else { ends[number as usize - 1] * item_bytes };
            if u64::try_from(place) == Ok(expected) {
                return Ok(());
            }
            Err(self.index.corrupt(first + 8 * number, "place of a sequence", expected, place))
        })?;
        Ok(ends)
    }

    /// Calls `visit` with each entry of an array of the index.
    fn each<const BYTES: usize>(
        &self,
        first: u64,
        count: u64,
        what: &str,
        mut visit: impl FnMut(u64, [u8; BYTES]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let at_once = (BLOCK_BYTES / BYTES) as u64;
        let mut block = vec![0; BLOCK_BYTES];
        for start in (0..count).step_by(at_once as usize) {
            let here = at_once.min(count - start);
            let bytes = &mut block[..here as usize * BYTES];
            self.index.read(first + start * BYTES as u64, bytes, what)?;
            for (number, entry) in (start..).zip(bytes.chunks_exact(BYTES)) {
                visit(number, entry.try_into().expect("a whole entry"))?;
            }
        }
        Ok(())
    }
}

/// The type of a code.
fn dtype_of(code: u8) -> Option<Dtype> {
    Some(match code {
        1 => Dtype::Uint8,
        2 => Dtype::Int8,
        3 => Dtype::Int16,
        4 => Dtype::Int32,
        5 => Dtype::Int64,
        6 => Dtype::Float64,
        7 => Dtype::Float32,
        8 => Dtype::Uint16,
        _ => return None,
    })
}
