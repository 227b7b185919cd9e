//! Expands the body of a block, the inverse of [`super::encode`], and checks all input: a block
//! holds only extents inside the range of the requested shard.
//!
//! The byte layout is in `docs/formats/sidecar.md`, "Block body".

use super::block::{
    Block, BlockError, DENSE, EXCEPTION, Limits, OFFSET_LIMIT, Part, PartPiece, RecordLocation,
    RecordLocations, Runs, SPARSE,
};
use super::class::{NUMBER_BYTES, Predictor, RecordClass, StoredIn};
use crate::varint::{Bytes, for_planes};

/// Expands a block body and checks every place in it.
pub(crate) fn decode(body: &[u8], classes: &[RecordClass], limits: &Limits) -> Result<Block, BlockError> {
    let mut bytes = Bytes::new(body);
    let head = Head::read(&mut bytes, classes, limits.records)?;
    let block = match head.regular(&bytes) {
        Some(class) => decode_runs(&mut bytes, class, &head, classes, limits)?,
        None => decode_each(&mut bytes, head, classes, limits)?,
    };
    if bytes.left() > 0 {
        return Err(BlockError::new("block body", "its end", format!("{} bytes more", bytes.left())));
    }
    Ok(block)
}

/// The part of a body before the codes.
struct Head<'a> {
    numbers: Numbers<'a>,
    base_length: u64,
    /// Planes of what lengths have above the base.
    excess: &'a [u8],
    excess_width: usize,
    predictors: Vec<Predictor>,
}

/// The class numbers of a block.
#[derive(Clone, Copy)]
enum Numbers<'a> {
    All(u8),
    Each(&'a [u8]),
}

impl Numbers<'_> {
    fn get(&self, index: usize) -> u8 {
        match self {
            Self::All(number) => *number,
            Self::Each(numbers) => numbers[index],
        }
    }
}

impl<'a> Head<'a> {
    fn read(bytes: &mut Bytes<'a>, classes: &[RecordClass], records: usize) -> Result<Self, BlockError> {
        let short = BlockError::short;
        let known = |number: u8| number == EXCEPTION || usize::from(number) < classes.len();
        let (numbers, unknown) = match bytes.byte() {
            Some(0) => {
                let number = bytes.byte().ok_or_else(short)?;
                (Numbers::All(number), Some(number).filter(|number| !known(*number)))
            }
            Some(1) => {
                let numbers = bytes.take(records).ok_or_else(short)?;
                (Numbers::Each(numbers), numbers.iter().copied().find(|number| !known(*number)))
            }
            other => return Err(BlockError::new("class mode", "0 or 1", format!("{other:?}"))),
        };
        if let Some(number) = unknown {
            let expected = format!("one of {} or {EXCEPTION}", classes.len());
            return Err(BlockError::new("class", expected, number));
        }
        let base_length = bytes.varint().ok_or_else(short)?;
        let excess_width = usize::from(bytes.byte().ok_or_else(short)?);
        // The longest record is far below 2^63: sums with the contents of eight planes are checked
        // by value.
        if base_length > OFFSET_LIMIT || excess_width > 7 {
            let expected = format!("at most {OFFSET_LIMIT} and 7 planes");
            return Err(BlockError::new(
                "length",
                expected,
                format!("{base_length} and {excess_width} planes"),
            ));
        }
        let excess = bytes.take(records * excess_width).ok_or_else(short)?;
        let mut predictors = Vec::with_capacity(classes.len());
        for class in classes {
            let descending = match bytes.byte() {
                Some(direction @ 0..=1) => direction == 1,
                other => return Err(BlockError::new("direction", "0 or 1", format!("{other:?}"))),
            };
            let overhead = bytes.varint().ok_or_else(short)?;
            predictors.push(Predictor::new(class, descending, overhead));
        }
        Ok(Self { numbers, base_length, excess, excess_width, predictors })
    }

    /// The class of all records, if they also have one length and `rest` begins with sparse codes.
    fn regular(&self, rest: &Bytes<'_>) -> Option<u8> {
        match self.numbers {
            Numbers::All(class)
                if class != EXCEPTION && self.excess_width == 0 && rest.peek() == Some(SPARSE) =>
            {
                Some(class)
            }
            _ => None,
        }
    }
}

/// Checks a record of a class against the shard.
fn check_place(start: u64, length: u64, class: &RecordClass, limits: &Limits) -> Result<(), BlockError> {
    if class.stored_in == StoredIn::Number {
        let fits = length == NUMBER_BYTES && start < OFFSET_LIMIT;
        let expected = || format!("{NUMBER_BYTES} bytes of a number below {OFFSET_LIMIT}");
        let found = || format!("{length} bytes of {start}");
        return if fits { Ok(()) } else { Err(BlockError::new("number", expected(), found())) };
    }
    let margin = class.margin_bytes();
    let data = if class.stored_in == StoredIn::Unit { &limits.decoded } else { &limits.data };
    // Lengths and margins stay far below 2^63, so only the start can be out of bounds.
    let inside = start >= data.start && start.checked_add(length + margin).is_some_and(|end| end <= data.end);
    if inside && length >= limits.lengths.0 && length <= limits.lengths.1 {
        return Ok(());
    }
    let (shortest, longest) = limits.lengths;
    let expected = format!("{shortest} to {longest} bytes within bytes {} to {}", data.start, data.end);
    Err(BlockError::new("record", expected, format!("{length} bytes from byte {start} on")))
}

/// Expands a block of records of one class and one length, run by run.
fn decode_runs(
    bytes: &mut Bytes<'_>,
    class: u8,
    head: &Head<'_>,
    classes: &[RecordClass],
    limits: &Limits,
) -> Result<Block, BlockError> {
    let length = head.base_length;
    let kind = &classes[usize::from(class)];
    let mut predictor = head.predictors[usize::from(class)].clone();
    let stride = predictor.stride(length);
    let mut starts: Vec<(u32, u64)> = Vec::new();
    // The code mode, which the caller has checked.
    bytes.byte();
    let coded = read_sparse(bytes, limits.records)?;
    if coded.first().is_none_or(|(index, _)| *index != 0) {
        starts.push((0, predictor.start(0, length)));
    }
    for (index, code) in coded {
        if let Some((first, start)) = starts.last() {
            let before = index as u64 - 1 - u64::from(*first);
            predictor.skip_to(start.wrapping_add(stride.wrapping_mul(before)), length);
        }
        starts.push((index as u32, predictor.start(code, length)));
    }
    for (number, (first, start)) in starts.iter().enumerate() {
        let next = starts.get(number + 1).map_or(limits.records as u64, |(next, _)| u64::from(*next));
        let steps = next - 1 - u64::from(*first);
        check_place(*start, length, kind, limits)?;
        // If two locations are in the shard, all between them are, unless the step from one to the
        // other wraps.
        let distance = (stride as i64).checked_mul(steps as i64);
        let last = distance.and_then(|distance| start.checked_add_signed(distance)).unwrap_or(u64::MAX);
        check_place(last, length, kind, limits)?;
    }
    Ok(Block {
        places: RecordLocations::Runs(Runs { class, length, stride, starts }),
        exceptions: Vec::new(),
    })
}

/// Expands any block, record by record.
fn decode_each(
    bytes: &mut Bytes<'_>,
    head: Head<'_>,
    classes: &[RecordClass],
    limits: &Limits,
) -> Result<Block, BlockError> {
    let Head { numbers, base_length, excess, excess_width, mut predictors } = head;
    let mut places = vec![RecordLocation { packed: 0, length: base_length }; limits.records];
    for_planes(excess, limits.records, excess_width, |index, value| places[index].length += value);
    match bytes.byte() {
        Some(SPARSE) => {
            for (index, code) in read_sparse(bytes, limits.records)? {
                places[index].packed = code;
            }
        }
        Some(DENSE) => {
            let width = usize::from(bytes.byte().filter(|width| *width <= 8).ok_or_else(BlockError::short)?);
            let planes = bytes.take(limits.records * width).ok_or_else(BlockError::short)?;
            for_planes(planes, limits.records, width, |index, value| places[index].packed = value);
        }
        other => return Err(BlockError::new("code mode", "0 or 1", format!("{other:?}"))),
    }
    let mut exceptions = Vec::new();
    for (index, place) in places.iter_mut().enumerate() {
        let number = numbers.get(index);
        if number == EXCEPTION {
            *place = RecordLocation { packed: u64::from(EXCEPTION), length: exceptions.len() as u64 };
            exceptions.push(read_exception(bytes, limits)?);
            continue;
        }
        let class = usize::from(number);
        let start = predictors[class].start(place.packed, place.length);
        check_place(start, place.length, &classes[class], limits)?;
        place.packed = start << 8 | u64::from(number);
    }
    Ok(Block { places: RecordLocations::Each(places), exceptions })
}

/// Reads sparse codes: index and code, indexes ascending.
fn read_sparse(bytes: &mut Bytes<'_>, records: usize) -> Result<Vec<(usize, u64)>, BlockError> {
    let short = BlockError::short;
    let count = bytes.varint().ok_or_else(short)?;
    if count > records as u64 {
        return Err(BlockError::new("codes", format!("at most {records}"), count));
    }
    let mut coded = Vec::with_capacity(count as usize);
    let mut next = 0_u64;
    for _ in 0..count {
        let index = bytes.varint().and_then(|gap| next.checked_add(gap)).ok_or_else(short)?;
        if index >= records as u64 {
            return Err(BlockError::new("coded record", format!("below {records}"), index));
        }
        coded.push((index as usize, 0));
        next = index + 1;
    }
    for (_, code) in &mut coded {
        *code = bytes.varint().ok_or_else(short)?;
    }
    Ok(coded)
}

fn read_exception(bytes: &mut Bytes<'_>, limits: &Limits) -> Result<Vec<Part>, BlockError> {
    let short = BlockError::short;
    let mut parts = Vec::new();
    let mut length = 0_u64;
    for _ in 0..bytes.varint().ok_or_else(short)? {
        let part = read_part(bytes, limits)?;
        length = length.saturating_add(part.length);
        parts.push(part);
    }
    if length < limits.lengths.0 || length > limits.lengths.1 {
        let expected = format!("{} to {} bytes", limits.lengths.0, limits.lengths.1);
        return Err(BlockError::new("exceptional record", expected, length));
    }
    Ok(parts)
}

fn read_part(bytes: &mut Bytes<'_>, limits: &Limits) -> Result<Part, BlockError> {
    let short = BlockError::short;
    let mut numbers = [0; 6];
    for number in &mut numbers {
        *number = bytes.varint().ok_or_else(short)?;
    }
    let [codecs, decoded_bytes, guard, offset, length, pieces] = numbers;
    if codecs >= limits.chains as u64 {
        return Err(BlockError::new("codec chain", format!("below {}", limits.chains), codecs));
    }
    if decoded_bytes > OFFSET_LIMIT || offset.checked_add(length).is_none_or(|end| end > decoded_bytes) {
        let expected = format!("within {decoded_bytes} decoded bytes");
        return Err(BlockError::new("slice", expected, format!("{length} bytes from byte {offset} on")));
    }
    let mut part = Part { pieces: Vec::new(), codecs: codecs as u16, decoded_bytes, guard, offset, length };
    let mut encoded_bytes = 0_u64;
    for _ in 0..pieces {
        let head = bytes.varint().ok_or_else(short)?;
        let length = head >> 1;
        if head & 1 == 1 {
            part.pieces.push(PartPiece::Literal(bytes.take(length as usize).ok_or_else(short)?.to_vec()));
        } else {
            let offset = bytes.varint().ok_or_else(short)?;
            if offset < limits.data.start
                || offset.checked_add(length).is_none_or(|end| end > limits.data.end)
            {
                let expected = format!("within bytes {} to {}", limits.data.start, limits.data.end);
                return Err(BlockError::new(
                    "extent",
                    expected,
                    format!("{length} bytes from byte {offset} on"),
                ));
            }
            part.pieces.push(PartPiece::Extent { offset, length });
        }
        encoded_bytes = encoded_bytes.saturating_add(length);
    }
    if codecs == 0 && encoded_bytes != decoded_bytes {
        return Err(BlockError::new("stored unit", format!("{decoded_bytes} bytes"), encoded_bytes));
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::sidecar::IndexEntry;
    use crate::index::sidecar::class::inline;
    use crate::index::sidecar::encode::encode;
    use crate::varint::put;

    fn classes() -> [RecordClass; 2] {
        let inline = inline();
        let big = RecordClass {
            name: "big".into(),
            head_bytes: 16,
            align_bytes: 4096,
            step_bytes: 4096,
            page_bytes: 0,
            guard: true,
            ..inline.clone()
        };
        [inline, big]
    }

    /// The path for blocks of any kind.
    fn decode_plainly(body: &[u8], limits: &Limits) -> Result<Block, BlockError> {
        let mut bytes = Bytes::new(body);
        let head = Head::read(&mut bytes, &classes(), limits.records)?;
        decode_each(&mut bytes, head, &classes(), limits)
    }

    proptest! {
        #[test]
        fn runs_hold_the_places_that_the_plain_path_finds(
            class in 0_u8..2,
            length in prop_oneof![0_u64..300, any::<u64>()],
            descending: bool,
            overhead in prop_oneof![8 => 0_u64..64, 1 => any::<u64>()],
            codes in proptest::collection::vec((0_u64..40, prop_oneof![1_u64..50, any::<u64>()]), 0..12),
            records in 1_usize..300,
            first in prop_oneof![4 => 1_000_000_u64..2_000_000, 1 => any::<u64>()],
        ) {
            let mut body = vec![0, class];
            put(&mut body, length);
            body.push(0);
            for _ in 0..2 {
                body.push(u8::from(descending));
                put(&mut body, overhead);
            }
            body.push(SPARSE);
            put(&mut body, codes.len() as u64 + 1);
            put(&mut body, 0);
            for (gap, _) in &codes {
                put(&mut body, *gap);
            }
            put(&mut body, first << 2);
            for (_, code) in &codes {
                put(&mut body, *code);
            }
            let limits = Limits { records, data: 8192..1 << 40, decoded: 0..0, lengths: (0, u64::MAX), chains: 1 };
            match (decode(&body, &classes(), &limits), decode_plainly(&body, &limits)) {
                (Ok(runs), Ok(plain)) => {
                    prop_assert!(matches!(runs.places, RecordLocations::Runs(_)));
                    for index in 0..records {
                        prop_assert_eq!(runs.place(index), plain.place(index));
                    }
                    prop_assert!(runs.bytes() < plain.bytes() + 600);
                }
                (Err(runs), Err(plain)) => prop_assert_eq!(runs.what, plain.what),
                (runs, plain) => prop_assert!(false, "{runs:?} {plain:?}"),
            }
        }
    }

    #[test]
    fn every_part_of_a_body_is_needed() {
        let entries = [
            IndexEntry::Plain { class: 0, start: 9000, length: 5 },
            IndexEntry::Plain { class: 1, start: 3 * 4096, length: 700 },
            IndexEntry::Exception(vec![Part {
                pieces: vec![PartPiece::Literal(vec![1, 2, 3])],
                codecs: 0,
                decoded_bytes: 3,
                guard: 0,
                offset: 1,
                length: 2,
            }]),
        ];
        let body = encode(&entries, &classes());
        let limits = Limits { records: 3, data: 8192..1 << 30, decoded: 0..0, lengths: (2, 700), chains: 1 };
        let block = decode(&body, &classes(), &limits).expect("as it was written");
        assert_eq!(block.place(1).plain(), (1, 3 * 4096, 700));
        assert_eq!(IndexEntry::Exception(block.exception(block.place(2)).to_vec()), entries[2]);
        for length in 0..body.len() {
            assert!(
                decode(&body[..length], &classes(), &limits).is_err(),
                "{length} of {} bytes",
                body.len()
            );
        }
        let error = decode(&[&body[..], &[0]].concat(), &classes(), &limits).expect_err("a byte too many");
        assert_eq!((error.what.as_str(), error.found.as_str()), ("block body", "1 bytes more"));
        let narrow = Limits { lengths: (2, 699), ..limits };
        assert!(decode(&body, &classes(), &narrow).is_err(), "longer than the longest record");
    }
}
