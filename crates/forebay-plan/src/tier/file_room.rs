//! Which level the daemon of `forebay run` copies a file to: the first one that has room.

/// What files take a multiple of \[bytes\]: the block of the file systems that levels are on.
const UNIT_BYTES: u64 = 4096;

/// What a file that is `bytes` bytes long takes of a level \[bytes\].
#[must_use]
pub fn file_room_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT_BYTES)
}

/// Why there is no place for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCopy {
    /// There is no room now.
    Full,
    /// The file is larger than each of the levels.
    TooLarge,
    /// No level is in use: they failed or were deleted.
    LevelsOut,
}

/// Begins a copy of a file, `bytes` bytes long, on the first level that has room: `begin` tries a
/// level. `levels` are the nearest first, each with what it may hold \[bytes\].
///
/// # Errors
///
/// Why no level has room.
pub fn first_with_room<L: Copy, T>(
    bytes: u64,
    levels: impl IntoIterator<Item = (L, u64)>,
    mut begin: impl FnMut(L) -> Option<T>,
) -> Result<T, NoCopy> {
    let mut why = NoCopy::LevelsOut;
    for (level, quota_bytes) in levels {
        if file_room_bytes(bytes) > quota_bytes {
            why = if why == NoCopy::Full { why } else { NoCopy::TooLarge };
            continue;
        }
        why = NoCopy::Full;
        if let Some(begun) = begin(level) {
            return Ok(begun);
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_to_the_first_level_that_has_room() {
        // Quota and what is free of it, in units.
        let small = (2, 2);
        for (bytes, levels, expected) in [
            (1, vec![(9, 1), (9, 9)], Ok(0)),
            (4097, vec![(9, 1), (9, 9)], Ok(1)),
            (4097, vec![(9, 1), (9, 1)], Err(NoCopy::Full)),
            (4097, vec![(1, 1), (9, 2)], Ok(1)),
            (3 * 4096, vec![small, small], Err(NoCopy::TooLarge)),
            (3 * 4096, vec![small, (9, 2)], Err(NoCopy::Full)),
            (3 * 4096, vec![(9, 2), small], Err(NoCopy::Full)),
            (1, vec![], Err(NoCopy::LevelsOut)),
        ] {
            let quotas = levels.iter().map(|(quota, _)| quota * 4096).enumerate();
            let begin = |level: usize| (file_room_bytes(bytes) <= levels[level].1 * 4096).then_some(level);
            assert_eq!(first_with_room(bytes, quotas, begin), expected, "{bytes}, {levels:?}");
        }
    }
}
