//! Checks of a unit that readers make once its bytes are read.

use std::path::Path;

use forebay_types::{Dtype, Extent};

use crate::index::sidecar::ShardState;
use crate::unit_check::lmdb_identity::Identity;
use crate::unit_check::lmdb_overflow_header::check_overflow_header;
use crate::unit_check::tfrecord::{check_parts, check_record};
use crate::{Error, Format};

/// How the units of a shard are checked.
#[derive(Clone, Debug)]
pub(super) enum Guard {
    /// Nothing can be checked.
    None,
    /// The header of an overflow run precedes a big value (LMDB).
    OverflowHeader(Box<Identity>),
    /// A record has a checksum of its length and one of its data (`TFRecord`).
    RecordChecksum,
    /// A record is tokens of this type, whose ids are below a number that the caller stated.
    Vocabulary { ids: u64, dtype: Dtype },
}

impl Guard {
    /// The guard of a shard in this state.
    pub(super) fn of(format: Format, state: &ShardState) -> Self {
        match state {
            ShardState::Lmdb(identity) => Self::OverflowHeader(Box::new(identity.clone())),
            ShardState::File { .. } if format == Format::TfRecord => Self::RecordChecksum,
            ShardState::File { .. } => Self::None,
        }
    }

    /// Checks the first bytes of a unit, which begins at `extent`, against the number in its
    /// location.
    pub(super) fn check_head(
        &self,
        number: u64,
        extent: Extent,
        head: &[u8],
        path: &Path,
    ) -> Result<(), Error> {
        let Self::OverflowHeader(identity) = self else { return Ok(()) };
        let length = extent.length.saturating_sub(u64::from(identity.dialect.header_bytes()));
        check_overflow_header(identity, number, length, head).map_err(|error| error.at(path))
    }

    /// Checks the data of a record, which begins at `start`, against the bytes before and after
    /// them.
    pub(super) fn check_data(
        &self,
        [head, data, tail]: [&[u8]; 3],
        start: u64,
        path: &Path,
    ) -> Result<(), Error> {
        match self {
            Self::RecordChecksum => check_parts(head, data, tail, start, path),
            Self::Vocabulary { ids, dtype } => check_ids(*ids, *dtype, data, start, path),
            Self::None | Self::OverflowHeader(_) => Ok(()),
        }
    }

    /// Checks a record that was read whole.
    pub(super) fn check_record(&self, unit: &[u8], start: u64, path: &Path) -> Result<(), Error> {
        match self {
            Self::RecordChecksum => check_record(unit, start, path),
            Self::Vocabulary { ids, dtype } => check_ids(*ids, *dtype, unit, start, path),
            Self::None | Self::OverflowHeader(_) => Ok(()),
        }
    }
}

/// Checks that tokens, which begin at `start`, are ids from 0 to below `ids`.
fn check_ids(ids: u64, dtype: Dtype, tokens: &[u8], start: u64, path: &Path) -> Result<(), Error> {
    // Negative numbers are large ones without a sign.
    let wrong = match dtype.item_bytes() {
        1 => first_wrong::<1>(tokens, |token| u64::from(token[0]) >= ids),
        2 => first_wrong::<2>(tokens, |token| u64::from(u16::from_ne_bytes(token)) >= ids),
        4 => first_wrong::<4>(tokens, |token| u64::from(u32::from_ne_bytes(token)) >= ids),
        _ => first_wrong::<8>(tokens, |token| u64::from_ne_bytes(token) >= ids),
    };
    let Some(place) = wrong else { return Ok(()) };
    let bytes = dtype.item_bytes();
    let token = &tokens[place * bytes..(place + 1) * bytes];
    Err(Error::Corrupt {
        path: path.to_owned(),
        offset: start + (place * bytes) as u64,
        what: "id of a token".to_owned(),
        expected: format!("0 to {}, as vocabulary={ids} says", ids.saturating_sub(1)),
        found: shown(token, dtype),
    })
}

/// The place of the first token that is wrong.
fn first_wrong<const BYTES: usize>(tokens: &[u8], is_wrong: impl Fn([u8; BYTES]) -> bool) -> Option<usize> {
    let (tokens, _) = tokens.as_chunks::<BYTES>();
    // Without an early end the compiler makes wide instructions of it.
    let any =
        tokens.chunks(1024).position(|some| some.iter().fold(false, |any, token| any | is_wrong(*token)))?;
    tokens[any * 1024..].iter().position(|token| is_wrong(*token)).map(|place| any * 1024 + place)
}

fn shown(token: &[u8], dtype: Dtype) -> String {
    let is_signed = matches!(dtype, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64);
    let bits = 8 * token.len();
    let value = token.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    if is_signed && value >> (bits - 1) == 1 {
        // Above the sign, all bits of 64 are as the sign.
        return ((value | u64::MAX.checked_shl(bits as u32).unwrap_or(0)) as i64).to_string();
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_the_vocabulary_lacks_is_named_with_its_place() {
        let mut tokens: Vec<u8> = (0..3000_u16).flat_map(u16::to_le_bytes).collect();
        let check = |tokens: &[u8], dtype| check_ids(3000, dtype, tokens, 100, Path::new("x"));
        assert!(check(&tokens, Dtype::Uint16).is_ok());
        tokens[2 * 2500..2 * 2500 + 2].copy_from_slice(&3000_u16.to_le_bytes());
        let Err(Error::Corrupt { offset, found, .. }) = check(&tokens, Dtype::Uint16) else {
            panic!("taken")
        };
        assert_eq!((offset, found.as_str()), (5100, "3000"));
        for (token, dtype, shown) in [
            (&(-3_i8).to_le_bytes()[..], Dtype::Int8, "-3"),
            (&(-3_i16).to_le_bytes(), Dtype::Int16, "-3"),
            (&(-3_i32).to_le_bytes(), Dtype::Int32, "-3"),
            (&(-3_i64).to_le_bytes(), Dtype::Int64, "-3"),
            (&(1_u64 << 63).to_le_bytes(), Dtype::Uint64, "9223372036854775808"),
        ] {
            // As one byte, 253 is no id of 253 either.
            let Err(Error::Corrupt { found, .. }) = check_ids(253, dtype, token, 0, Path::new("x")) else {
                panic!("{shown} was taken")
            };
            assert_eq!(found, shown);
        }
    }
}
