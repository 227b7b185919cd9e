//! Codes the records of one block: the other side of [`mod@super::decode`].

use std::collections::HashMap;

use super::block::{DENSE, EXCEPTION, IndexEntry, Part, PartPiece, SPARSE};
use super::class::{Predictor, RecordClass};
use crate::varint::{put, put_planes, width};

/// Sparse codes are used up to this share of coded records; beyond it planes are smaller.
const SPARSE_SHARE: usize = 4;

/// Codes the records of one block.
pub(crate) fn encode(entries: &[IndexEntry], classes: &[RecordClass]) -> Vec<u8> {
    let mut out = Vec::new();
    let class_of = |entry: &IndexEntry| match entry {
        IndexEntry::Plain { class, .. } => *class,
        IndexEntry::Exception(_) => EXCEPTION,
    };
    let first = class_of(&entries[0]);
    if entries.iter().all(|entry| class_of(entry) == first) {
        out.extend([0, first]);
    } else {
        out.push(1);
        out.extend(entries.iter().map(class_of));
    }

    let length_of =
        |entry: &IndexEntry| if let IndexEntry::Plain { length, .. } = entry { Some(*length) } else { None };
    let base = entries.iter().filter_map(length_of).min().unwrap_or(0);
    let excess: Vec<u64> =
        entries.iter().map(|entry| length_of(entry).map_or(0, |length| length - base)).collect();
    put(&mut out, base);
    put_sized_planes(&mut out, &excess);

    let mut codes = vec![0; entries.len()];
    for (number, class) in classes.iter().enumerate() {
        let members: Vec<(usize, u64, u64)> = entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| match entry {
                IndexEntry::Plain { class, start, length } if usize::from(*class) == number => {
                    Some((index, *start, *length))
                }
                _ => None,
            })
            .collect();
        let (descending, overhead, found) = best_predictor(class, &members);
        for ((index, ..), code) in members.iter().zip(found) {
            codes[*index] = code;
        }
        out.push(u8::from(descending));
        put(&mut out, overhead);
    }
    put_codes(&mut out, &codes);

    for entry in entries {
        if let IndexEntry::Exception(parts) = entry {
            put_exception(&mut out, parts);
        }
    }
    out
}

/// The direction and overhead that leave the fewest codes, and the codes.
fn best_predictor(class: &RecordClass, members: &[(usize, u64, u64)]) -> (bool, u64, Vec<u64>) {
    let attempt = |descending| {
        let overhead = likely_overhead(class, members, descending);
        let mut predictor = Predictor::new(class, descending, overhead);
        let codes: Vec<u64> =
            members.iter().map(|(_, start, length)| predictor.code(*start, *length)).collect();
        let misses = codes.iter().filter(|code| **code != 0).count();
        (misses, descending, overhead, codes)
    };
    let (up, down) = (attempt(false), attempt(true));
    let (_, descending, overhead, codes) = if down.0 < up.0 { down } else { up };
    (descending, overhead, codes)
}

/// The overhead that explains most neighbours. With steps above 2 it is the margin of the class.
fn likely_overhead(class: &RecordClass, members: &[(usize, u64, u64)], descending: bool) -> u64 {
    if class.step_bytes > 2 {
        return class.margin_bytes();
    }
    let mut votes: HashMap<u64, usize> = HashMap::new();
    for pair in members.windows(2) {
        let ((_, start, length), (_, next_start, next_length)) = (pair[0], pair[1]);
        let (gap, length) = if descending {
            (start.checked_sub(next_start), next_length)
        } else {
            (next_start.checked_sub(start), length)
        };
        let Some(overhead) = gap.and_then(|gap| gap.checked_sub(length)).filter(|bytes| *bytes < 1 << 16)
        else {
            continue;
        };
        for candidate in overhead.saturating_sub(u64::from(class.step_bytes) - 1)..=overhead {
            *votes.entry(candidate).or_default() += 1;
        }
    }
    // Ties go to the smallest, so that the bytes do not depend on the order of the map.
    votes
        .into_iter()
        .max_by_key(|(bytes, count)| (*count, u64::MAX - bytes))
        .map_or(class.margin_bytes(), |vote| vote.0)
}

fn put_sized_planes(out: &mut Vec<u8>, values: &[u64]) {
    let bytes = width(values.iter().fold(0, |all, value| all | value));
    out.push(bytes as u8);
    put_planes(out, values, bytes);
}

fn put_codes(out: &mut Vec<u8>, codes: &[u64]) {
    let coded: Vec<usize> = (0..codes.len()).filter(|index| codes[*index] != 0).collect();
    if coded.len() * SPARSE_SHARE > codes.len() {
        out.push(DENSE);
        put_sized_planes(out, codes);
        return;
    }
    out.push(SPARSE);
    put(out, coded.len() as u64);
    let mut next = 0;
    for index in &coded {
        put(out, (index - next) as u64);
        next = index + 1;
    }
    for index in &coded {
        put(out, codes[*index]);
    }
}

fn put_exception(out: &mut Vec<u8>, parts: &[Part]) {
    put(out, parts.len() as u64);
    for part in parts {
        for number in [u64::from(part.codecs), part.decoded_bytes, part.guard, part.offset, part.length] {
            put(out, number);
        }
        put(out, part.pieces.len() as u64);
        for piece in &part.pieces {
            match piece {
                PartPiece::Extent { offset, length } => {
                    put(out, length << 1);
                    put(out, *offset);
                }
                PartPiece::Literal(bytes) => {
                    put(out, (bytes.len() as u64) << 1 | 1);
                    out.extend_from_slice(bytes);
                }
            }
        }
    }
}
