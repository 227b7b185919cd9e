//! Levels whose bytes take a request: each gets all that a group of samples lacks as one list.
//!
//! 1. What is missing goes to the first level that has it.
//! 2. A level answers its list in any order, with any number of requests under way. It fills the
//!    caller's memory; no descriptor is needed for that.
//! 3. Values are checked, and small extents handed to [`InPlace`].
//! 4. The list of a level that lost its bytes goes to the levels below. Another request without an
//!    answer is left to the sample that it is for, which reads its own bytes and meets the error.

use forebay_plan::{RequestTraits, SharePart, in_place_runs};
use forebay_types::Extent;

use crate::error::Error;
use crate::pipeline::fetch::missing::{Holder, Missing, Value};
use crate::pipeline::gather::in_place::InPlace;

/// A request: bytes of the source, and where they go.
pub(super) struct Get<'m> {
    pub(super) extent: Extent,
    /// Where the level said that they are.
    pub(super) parts: Vec<SharePart>,
    /// Memory for the first bytes of the extent: the header, the value and the checksum, one behind
    /// the other. The first and the last may be empty.
    pub(super) into: [&'m mut [u8]; 3],
    /// The slot of the sample, of a value; small extents may be of several samples.
    pub(super) slot: Option<usize>,
    /// Whether the memory is filled.
    pub(super) is_filled: bool,
    number: usize,
}

/// How a level has answered its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    /// As each request says.
    Answered,
    /// It has lost the bytes.
    Lost,
    /// The claim is void.
    Void,
}

/// See the module header.
pub(super) trait FarLevel {
    /// Where the level has the bytes of an extent, in its own terms, which may be none; `None` if
    /// it lacks some. Asks no storage.
    fn locate(&self, extent: Extent) -> Option<Vec<SharePart>>;

    /// How requests suit it.
    fn traits(&self) -> RequestTraits;

    /// Answers requests, which come in the order of the files.
    ///
    /// # Errors
    /// One that ends the step, with the slot of the sample that it is about.
    fn fetch(&self, list: &mut [Get<'_>]) -> Result<Fetched, (usize, Error)>;
}

/// The first level, from number `from` on, that has an extent.
pub(super) fn holder(levels: &[&dyn FarLevel], from: usize, extent: Extent) -> Option<Holder> {
    levels.iter().enumerate().skip(from).find_map(|(level, far)| {
        let parts = far.locate(extent)?;
        Some(Holder { level, parts })
    })
}

/// Fetches what is missing; false once the claim is void. `check` gets each value with its header
/// and, `with_tails`, what stands behind it.
pub(super) fn fetch_missing(
    levels: &[&dyn FarLevel],
    mut missing: Missing<'_>,
    with_tails: bool,
    columns: usize,
    in_place: &mut InPlace<'_>,
    check: impl Fn(&Value<'_>, &[u8], &[u8]) -> Result<(), Error>,
) -> Result<bool, (usize, Error)> {
    for (number, level) in levels.iter().enumerate() {
        let Missing { mut values, small } = missing.take(number);
        let (small, mut parts): (Vec<Extent>, Vec<_>) =
            small.into_iter().map(|(extent, at)| (extent, at.parts)).unzip();
        let runs = in_place_runs(&small, level.traits().gap_bytes);
        let tail_bytes = |value: &Value<'_>| if with_tails { value.tail_bytes() } else { 0 };
        let mut margins = vec![0; values.iter().map(|value| value.head + tail_bytes(value)).sum()];
        let run_bytes = runs.iter().map(|run| run.extent.length as usize).sum();
        let (start, mut memory) = in_place.more_memory(run_bytes);
        let mut list: Vec<Get<'_>> = Vec::with_capacity(values.len() + runs.len());
        let mut rest = &mut margins[..];
        for value in &mut values {
            let behind = tail_bytes(value);
            let (head, left) = std::mem::take(&mut rest).split_at_mut(value.head);
            let (tail, left) = left.split_at_mut(behind);
            rest = left;
            let (slot, parts) = (Some(value.slot), std::mem::take(&mut value.at.parts));
            let into: [&mut [u8]; 3] = [head, &mut *value.into, tail];
            list.push(Get { extent: value.extent, parts, into, slot, is_filled: false, number: list.len() });
        }
        for run in &runs {
            let (into, left) = std::mem::take(&mut memory).split_at_mut(run.extent.length as usize);
            memory = left;
            let parts = std::mem::take(&mut parts[run.members.start]);
            let into: [&mut [u8]; 3] = [&mut [], into, &mut []];
            list.push(Get {
                extent: run.extent,
                parts,
                into,
                slot: None,
                is_filled: false,
                number: list.len(),
            });
        }
        if list.is_empty() {
            continue;
        }
        list.sort_unstable_by_key(|get| get.extent);
        let fetched = level.fetch(&mut list)?;
        let mut is_filled = vec![false; list.len()];
        for get in &list {
            is_filled[get.number] = get.is_filled;
        }
        drop(list);
        match fetched {
            Fetched::Answered => {}
            Fetched::Void => return Ok(false),
            Fetched::Lost => {
                let below = |extent| holder(levels, number + 1, extent);
                let values = values.into_iter();
                missing
                    .values
                    .extend(values.filter_map(|value| Some(Value { at: below(value.extent)?, ..value })));
                let small = small.into_iter();
                missing.small.extend(small.filter_map(|extent| Some((extent, below(extent)?))));
                continue;
            }
        }
        let mut rest = &margins[..];
        for (value, is_filled) in values.iter().zip(&is_filled) {
            let (head, left) = rest.split_at(value.head);
            let (tail, left) = left.split_at(tail_bytes(value));
            rest = left;
            if *is_filled {
                check(value, head, tail).map_err(|error| (value.slot, error))?;
                in_place.place(value.slot * columns + value.column);
            }
        }
        for (run, _) in runs.iter().zip(&is_filled[values.len()..]).filter(|(_, is_filled)| **is_filled) {
            in_place.has(start, run, &small);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use forebay_types::ShardId;

    use super::*;

    /// Length of a value, and of what stands before and behind it \[bytes\].
    const VALUE: usize = 5;
    const HEAD: usize = 3;
    const TAIL: usize = 2;

    fn byte(extent: Extent, at: usize) -> u8 {
        (u64::from(extent.shard.0) * 89 + extent.offset + at as u64) as u8
    }

    fn source(extent: Extent) -> Vec<u8> {
        (0..extent.length as usize).map(|at| byte(extent, at)).collect()
    }

    fn extent(shard: u32, offset: u64, length: usize) -> Extent {
        Extent { shard: ShardId(shard), offset, length: length as u64 }
    }

    /// A level without descriptors, as an object store is: each request is answered after 30 ms,
    /// later ones before earlier ones.
    struct Objects {
        has: fn(Extent) -> bool,
        /// Requests that it leaves without an answer.
        refuses: fn(Extent) -> bool,
        /// The slot of a value that comes with another checksum.
        wrong_slot: Option<usize>,
        requests_at_once: usize,
        gap_bytes: Option<u64>,
        answer: Fetched,
        /// Model time.
        clock_ms: Cell<u64>,
        asked: RefCell<Vec<Extent>>,
    }

    impl Objects {
        fn new(has: fn(Extent) -> bool) -> Self {
            Self {
                has,
                refuses: |_| false,
                wrong_slot: None,
                requests_at_once: 32,
                gap_bytes: None,
                answer: Fetched::Answered,
                clock_ms: Cell::new(0),
                asked: RefCell::default(),
            }
        }
    }

    impl FarLevel for Objects {
        fn locate(&self, extent: Extent) -> Option<Vec<SharePart>> {
            (self.has)(extent).then(Vec::new)
        }

        fn traits(&self) -> RequestTraits {
            RequestTraits { gap_bytes: self.gap_bytes, ..RequestTraits::PEERS }
        }

        fn fetch(&self, list: &mut [Get<'_>]) -> Result<Fetched, (usize, Error)> {
            self.asked.borrow_mut().extend(list.iter().map(|get| get.extent));
            for under_way in list.chunks_mut(self.requests_at_once) {
                self.clock_ms.set(self.clock_ms.get() + 30);
                for get in under_way.iter_mut().rev() {
                    // What comes from a level that is lost is worth nothing.
                    let is_lost = self.answer == Fetched::Lost;
                    let places = get.into.iter_mut().flat_map(|into| into.iter_mut()).enumerate();
                    places.for_each(|(at, place)| *place = if is_lost { 255 } else { byte(get.extent, at) });
                    if get.slot.is_some() && get.slot == self.wrong_slot {
                        get.into[2][0] ^= 1;
                    }
                    get.is_filled = !(self.refuses)(get.extent);
                }
            }
            Ok(self.answer)
        }
    }

    /// What a fetch came to.
    struct Outcome {
        fetched: Result<bool, (usize, Error)>,
        batch: Vec<u8>,
        in_place: InPlace<'static>,
    }

    /// Fetches values, one for each slot, and small extents. Values are checked as formats do.
    fn fetch(levels: &[&dyn FarLevel], values: &[Extent], small: &[Extent]) -> Outcome {
        let places: Vec<_> = (0..values.len()).map(|slot| slot * VALUE..(slot + 1) * VALUE).collect();
        let mut batch = vec![0; values.len() * VALUE];
        let mut missing = Missing::default();
        for (slot, extent) in values.iter().enumerate() {
            let at = holder(levels, 0, *extent).unwrap();
            let value = Value { slot, column: 0, extent: *extent, head: HEAD, unit: 0, at, into: &mut [] };
            missing.values.push(value);
        }
        missing.small.extend(small.iter().map(|extent| (*extent, holder(levels, 0, *extent).unwrap())));
        missing.give_places(&mut batch, &places, 1);
        let mut in_place = InPlace::default();
        in_place.begin();
        let check = |value: &Value<'_>, head: &[u8], tail: &[u8]| {
            let is_right = [head, &*value.into, tail].concat() == source(value.extent);
            if is_right { Ok(()) } else { Err(Error::local("other bytes")) }
        };
        let fetched = fetch_missing(levels, missing, true, 1, &mut in_place, check);
        Outcome { fetched, batch, in_place }
    }

    /// Values of file 0 and small extents of file 1, all apart.
    fn extents(count: usize) -> (Vec<Extent>, Vec<Extent>) {
        let values = (0..count as u64).map(|number| extent(0, number * 7_000, HEAD + VALUE + TAIL));
        let small = (0..count as u64).map(|number| extent(1, number * 9_000, 4 + number as usize % 3));
        (values.rev().collect(), small.rev().collect())
    }

    fn is_complete(outcome: &Outcome, values: &[Extent], small: &[Extent]) -> bool {
        let value = |extent: &Extent| source(*extent)[HEAD..HEAD + VALUE].to_vec();
        matches!(outcome.fetched, Ok(true))
            && outcome.batch == values.iter().flat_map(value).collect::<Vec<_>>()
            && (0..values.len()).all(|slot| outcome.in_place.is_placed(slot))
            && small.iter().all(|extent| outcome.in_place.get(*extent) == Some(&source(*extent)[..]))
    }

    #[test]
    fn extents_of_a_level_without_descriptors_are_under_way_together() {
        let (values, small) = extents(32);
        for (requests_at_once, expected_ms) in [(32, 60), (64, 30), (1, 64 * 30)] {
            let objects = Objects { requests_at_once, ..Objects::new(|_| true) };
            assert!(is_complete(&fetch(&[&objects], &values, &small), &values, &small));
            assert_eq!(objects.clock_ms.get(), expected_ms, "{requests_at_once} at once");
        }
    }

    #[test]
    fn each_extent_goes_to_the_first_level_that_has_it() {
        let (values, small) = extents(8);
        let (first, second) = (Objects::new(|extent| extent.offset % 2_000 == 0), Objects::new(|_| true));
        assert!(is_complete(&fetch(&[&first, &second], &values, &small), &values, &small));
        assert!(first.asked.borrow().iter().all(|extent| extent.offset % 2_000 == 0));
        assert!(second.asked.borrow().iter().all(|extent| extent.offset % 2_000 != 0));
        assert_eq!((first.asked.borrow().len(), second.asked.borrow().len()), (8, 8));
        assert!(first.asked.borrow().is_sorted(), "requests come in the order of the files");
    }

    #[test]
    fn what_a_level_has_lost_comes_from_the_level_below() {
        let (values, small) = extents(8);
        let lost = Objects { answer: Fetched::Lost, ..Objects::new(|extent| extent.offset < 30_000) };
        let below = Objects::new(|_| true);
        assert!(is_complete(&fetch(&[&lost, &below], &values, &small), &values, &small));
        assert_eq!((lost.asked.borrow().len(), below.asked.borrow().len()), (9, 16));
    }

    #[test]
    fn a_request_without_an_answer_is_left_to_its_sample() {
        let (values, small) = extents(4);
        let objects = Objects {
            refuses: |extent| extent.offset == 7_000 || extent.offset == 9_000,
            ..Objects::new(|_| true)
        };
        let outcome = fetch(&[&objects], &values, &small);
        assert!(matches!(outcome.fetched, Ok(true)));
        assert_eq!([0, 1, 2, 3].map(|slot| outcome.in_place.is_placed(slot)), [true, true, false, true]);
        let found = small.iter().map(|extent| outcome.in_place.get(*extent).is_some());
        assert_eq!(found.collect::<Vec<_>>(), [true, true, false, true]);
    }

    #[test]
    fn a_void_claim_ends_the_fetch_and_a_wrong_value_names_its_slot() {
        let (values, small) = extents(4);
        let void = Objects { answer: Fetched::Void, ..Objects::new(|extent| extent.offset < 1) };
        let below = Objects::new(|_| true);
        assert!(matches!(fetch(&[&void, &below], &values, &small).fetched, Ok(false)));
        assert!(below.asked.borrow().is_empty());
        let outcome = fetch(&[&Objects { wrong_slot: Some(2), ..Objects::new(|_| true) }], &values, &small);
        assert!(matches!(outcome.fetched, Err((2, _))));
        assert!(fetch(&[&below], &[], &[]).fetched.unwrap() && below.asked.borrow().is_empty());
    }

    #[test]
    fn small_extents_are_joined_as_the_level_says_and_asked_for_once() {
        let small = [extent(1, 50, 5), extent(1, 0, 10), extent(1, 50, 5), extent(1, 600, 5)];
        for (gap_bytes, expected) in [
            (None, vec![extent(1, 0, 10), extent(1, 50, 5), extent(1, 600, 5)]),
            (Some(100), vec![extent(1, 0, 55), extent(1, 600, 5)]),
        ] {
            let objects = Objects { gap_bytes, ..Objects::new(|_| true) };
            assert!(is_complete(&fetch(&[&objects], &[], &small), &[], &small));
            assert_eq!(*objects.asked.borrow(), expected);
        }
    }
}
