//! Damaged npy files and npz archives: an error that says where, or arrays that lie within the
//! file.
//!
//! Neither format has a checksum over what is read, so damage of a header's text can mean another
//! type or shape; what must hold is that nothing panics, that no place leaves the file, that fields
//! do not overlap, that whatever is the same header is the same array, and that no allocation is
//! larger than a few times the file.
//!
//! 6,000 files of each by default, 300,000 with `FOREBAY_LONG_TESTS=1`.

use std::env;
use std::path::Path;
use std::sync::Arc;

use crate::support::allocation::largest_allocation;
use crate::support::lmdb_writer::Random;
use crate::support::npy_writer::{Member, npy, zip};
use forebay_format::file::Input;
use forebay_format::npy::Arrays;
use forebay_format::{Error, SampleAxis};

/// What came of the mutated files.
#[derive(Debug, Default)]
struct Tally {
    files: u64,
    errors: u64,
    equal: u64,
    changed: u64,
}

/// A sound file and the part of it that is looked at, where damage is put.
struct Base {
    bytes: Vec<u8>,
    archive: bool,
    axis: SampleAxis,
}

fn open(bytes: &[u8], Base { archive, axis, .. }: &Base) -> Result<Arrays, Error> {
    let input = Input::from_source(Path::new("memory"), Arc::new(bytes.to_vec()))?;
    let (archive, axis) = (*archive, *axis);
    if archive { Arrays::npz(input, &[], axis) } else { Arrays::npy(input, &[], axis) }
}

fn bases() -> Vec<Base> {
    let structured = "[('a', '<i4'), (('title', 'b'), [('c', '>f8', (2,))]), ('', '|V4')]";
    let mut bases = Vec::new();
    for version in [1, 2, 3] {
        for (descr, shape, count) in [
            ("'<f4'", &[11, 3][..], 132),
            ("'<U2'", &[9], 72),
            ("'<M8[ns]'", &[5, 1, 2], 80),
            (structured, &[4], 96),
        ] {
            let bytes = npy(version, descr, false, shape, &Random(count).bytes(count as usize));
            bases.push(Base { bytes: bytes.clone(), archive: false, axis: SampleAxis::Auto });
            bases.push(Base { bytes, archive: false, axis: SampleAxis::File });
        }
    }
    for wide in [false, true] {
        let member = |name, version, descr, shape: &[u64], count| {
            Member::stored(name, npy(version, descr, false, shape, &Random(7).bytes(count)))
        };
        let members =
            [member("image.npy", 1, "'|u1'", &[6, 5], 30), member("naïve.npy", 2, structured, &[6], 144)];
        let axis = if wide { SampleAxis::File } else { SampleAxis::First };
        bases.push(Base { bytes: zip(&members, wide, b"a comment"), archive: true, axis });
    }
    bases
}

impl Base {
    fn judge(&self, bytes: &[u8], tally: &mut Tally, story: &dyn Fn() -> String) {
        tally.files += 1;
        let (found, largest) = largest_allocation(|| open(bytes, self));
        // The copy in memory, and a header as characters with their places.
        assert!(largest <= 1024 + 16 * bytes.len(), "{}: {largest} bytes at once", story());
        let arrays = match found {
            Err(error) => {
                tally.errors += 1;
                let message = error.to_string();
                let kind = matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. });
                assert!(kind && message.starts_with("memory: "), "{}: {message}", story());
                return;
            }
            Ok(arrays) => arrays,
        };
        let mut places: Vec<_> =
            arrays.fields().iter().map(|(_, array)| (array.start, array.start + array.bytes())).collect();
        places.sort_unstable();
        assert!(places.iter().all(|(start, end)| start < end && *end <= bytes.len() as u64), "{}", story());
        assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{}: overlap", story());
        let last = arrays.samples() - 1;
        for (field, (_, array)) in arrays.fields().iter().enumerate() {
            assert_eq!(arrays.start(last, field) + array.sample_bytes, array.start + array.bytes());
        }
        let sound = open(&self.bytes, self).expect("the base is sound");
        if arrays.state() == sound.state() {
            assert_eq!(arrays.fields(), sound.fields(), "{}", story());
            tally.equal += 1;
        } else {
            tally.changed += 1;
        }
    }

    /// Damages single bytes, runs of bytes, and characters of the header; cuts; repeats parts.
    fn mutate(&self, random: &mut Random, tally: &mut Tally) {
        let mut bytes = self.bytes.clone();
        let state = random.clone();
        let length = bytes.len() as u64;
        match random.below(6) {
            0 => bytes.truncate(random.below(length) as usize),
            1 => {
                for _ in 0..=random.below(4) {
                    let at = random.below(length) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
            }
            2 => {
                let (at, run) = (random.below(length) as usize, 1 + random.below(8) as usize);
                let value = [0, 0xff, 0x7f, b'9'][random.below(4) as usize];
                bytes.iter_mut().skip(at).take(run).for_each(|byte| *byte = value);
            }
            3 => {
                // Characters that mean something in the literal.
                let at = random.below(length.min(200)) as usize;
                bytes[at] = b"{}[]()',:0129LTFN<>|OUSV\\\" \n"[random.below(28) as usize];
            }
            4 => {
                let (from, to) = (random.below(length) as usize, random.below(length) as usize);
                let run = (1 + random.below(40) as usize).min(bytes.len() - from.max(to));
                bytes.copy_within(from..from + run, to);
            }
            _ => {
                // Deletes or doubles a stretch.
                let at = random.below(length) as usize;
                let run = (1 + random.below(20) as usize).min(bytes.len() - at);
                let stretch = bytes[at..at + run].to_vec();
                if random.below(2) == 0 {
                    bytes.drain(at..at + run);
                } else {
                    bytes.splice(at..at, stretch);
                }
            }
        }
        self.judge(&bytes, tally, &|| format!("base {:02x?}, from {:?}", &self.bytes[..60], state.0));
    }
}

#[test]
fn damaged_arrays_give_a_clear_error_or_places_within_the_file() {
    let long = env::var_os("FOREBAY_LONG_TESTS").is_some_and(|value| value == "1");
    for archive in [false, true] {
        let bases: Vec<_> = bases().into_iter().filter(|base| base.archive == archive).collect();
        let mut tally = Tally::default();
        for base in &bases {
            base.judge(&base.bytes, &mut tally, &|| "sound".to_owned());
        }
        assert_eq!(tally.errors, 0, "the bases are sound");
        let mut random = Random(6);
        while tally.files < if long { 300_000 } else { 6_000 } {
            for base in &bases {
                base.mutate(&mut random, &mut tally);
            }
        }
        println!("archive: {archive}, {tally:?}");
        assert!(tally.errors > tally.files / 4 && tally.equal > 0 && tally.changed > 0, "{tally:?}");
    }
}
