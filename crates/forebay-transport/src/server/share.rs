//! Shares: the memory that a node serves.

use forebay_host::Map;

/// Read-only bytes that a node serves to the others. They never change while they are exported.
pub trait Share: Send + Sync {
    /// Length \[bytes\]; stays the same.
    fn bytes(&self) -> u64;

    /// `length` bytes from `offset`; `None` if they are not inside the share. A share may consist
    /// of several mappings, as long as no request crosses from one to the next.
    fn slice(&self, offset: u64, length: u64) -> Option<&[u8]>;
}

/// The part of `bytes` from `offset` to `offset + length`.
fn part(bytes: &[u8], offset: u64, length: u64) -> Option<&[u8]> {
    let end = offset.checked_add(length)?;
    bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}

/// Sealed memory, mapped by [`Map::read_only`].
///
/// # Panics
/// For a map whose content is not sealed.
impl Share for Map {
    fn bytes(&self) -> u64 {
        Map::bytes(self).len() as u64
    }

    fn slice(&self, offset: u64, length: u64) -> Option<&[u8]> {
        part(Map::bytes(self), offset, length)
    }
}

impl Share for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn slice(&self, offset: u64, length: u64) -> Option<&[u8]> {
        part(self, offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_outside_of_a_share_is_none() {
        let share = vec![1, 2, 3, 4];
        assert_eq!(share.slice(1, 3), Some(&[2, 3, 4][..]));
        assert_eq!(share.slice(4, 0), Some(&[][..]));
        for (offset, length) in [(2, 3), (5, 0), (u64::MAX, 1), (0, u64::MAX)] {
            assert_eq!(share.slice(offset, length), None, "{offset} {length}");
        }
    }
}
