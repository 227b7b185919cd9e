//! The buffers of a batch: their places in the file, and the bytes of those that an index needs.

use crate::Error;
use crate::codec::{self, Codec};
use crate::file::Input;

/// The buffers of a batch.
pub(super) struct Buffers<'a> {
    pub(super) input: &'a Input,
    /// Start of their message, for errors.
    pub(super) at: u64,
    /// Start and length of each \[bytes\].
    pub(super) places: Vec<(u64, u64)>,
    /// What each is compressed with.
    pub(super) compression: Option<Codec>,
}

/// How a buffer is stored.
pub(super) struct Stored {
    /// Start and length of its bytes in the file \[bytes\].
    pub(super) place: (u64, u64),
    /// What undoes their compression.
    pub(super) codec: Option<Codec>,
    /// Their length without it \[bytes\].
    pub(super) decoded_bytes: u64,
}

impl Buffers<'_> {
    /// How a buffer is stored.
    pub(super) fn stored(&self, name: &str, buffer: usize) -> Result<Stored, Error> {
        let (offset, length) = self.places[buffer];
        let Some(codec) = self.compression.clone().filter(|_| length > 0) else {
            return Ok(Stored { place: (offset, length), codec: None, decoded_bytes: length });
        };
        // The length without compression comes first; -1: the bytes are stored.
        let mut prefix = [0; 8];
        let rest = length.checked_sub(prefix.len() as u64);
        let rest = rest.ok_or_else(|| self.wrong(name, "compressed buffer", "8 bytes or more", length))?;
        self.input.read(offset, &mut prefix, "length of a compressed buffer")?;
        let place = (offset + prefix.len() as u64, rest);
        let claimed = i64::from_le_bytes(prefix);
        if claimed == -1 {
            return Ok(Stored { place, codec: None, decoded_bytes: rest });
        }
        let fits = |bytes: &u64| codec::is_plausible(std::slice::from_ref(&codec), rest, *bytes);
        let decoded_bytes = u64::try_from(claimed).ok().filter(fits).ok_or_else(|| {
            let expected = format!("what {rest} bytes become");
            self.wrong(name, "length of a compressed buffer", expected, claimed)
        })?;
        Ok(Stored { place, codec: Some(codec), decoded_bytes })
    }

    /// The first `wanted` bytes of a buffer.
    pub(super) fn bytes(&self, name: &str, buffer: usize, wanted: u64) -> Result<Vec<u8>, Error> {
        let Stored { place, codec, decoded_bytes } = self.stored(name, buffer)?;
        if decoded_bytes < wanted {
            return Err(self.wrong(name, "length of a buffer", format!("{wanted} bytes"), decoded_bytes));
        }
        let mut encoded = self.room(name, if codec.is_some() { place.1 } else { wanted })?;
        self.input.read(place.0, &mut encoded, "a buffer of an Arrow batch")?;
        let Some(codec) = codec else { return Ok(encoded) };
        let mut decoded = self.room(name, decoded_bytes)?;
        codec::decode(&[codec], &encoded, &mut decoded).map_err(|error| {
            self.input.corrupt(place.0, format!("buffer of column {name:?}"), "what was compressed", error)
        })?;
        Ok(decoded)
    }

    fn room(&self, name: &str, bytes: u64) -> Result<Vec<u8>, Error> {
        let mut room = Vec::new();
        let reserved = room.try_reserve_exact(bytes as usize);
        reserved.map_err(|_| self.wrong(name, "length of a buffer", "what memory holds", bytes))?;
        room.resize(bytes as usize, 0);
        Ok(room)
    }

    /// The bounds of `count` lists or strings, after the first `first` ones.
    pub(super) fn offsets(
        &self,
        name: &str,
        buffer: usize,
        is_large: bool,
        first: u64,
        count: u64,
    ) -> Result<Vec<u64>, Error> {
        if count == 0 {
            return Ok(vec![0]);
        }
        let width = if is_large { 8 } else { 4 };
        let needed = first.checked_add(count).and_then(|end| end.checked_add(1)?.checked_mul(width));
        let needed = needed.ok_or_else(|| self.wrong(name, "offsets", "fewer", count))?;
        let bytes = self.bytes(name, buffer, needed)?;
        let bytes = &bytes[(first * width) as usize..needed as usize];
        let offsets: Option<Vec<u64>> = if is_large {
            bytes.as_chunks().0.iter().map(|bytes| u64::try_from(i64::from_le_bytes(*bytes)).ok()).collect()
        } else {
            bytes.as_chunks().0.iter().map(|bytes| u64::try_from(i32::from_le_bytes(*bytes)).ok()).collect()
        };
        let sorted = offsets.filter(|offsets| offsets.is_sorted());
        sorted.ok_or_else(|| self.wrong(name, "offsets", "ascending ones from 0 on", "others"))
    }

    /// The error of a column of the batch.
    pub(super) fn wrong(
        &self,
        name: &str,
        what: &str,
        expected: impl ToString,
        found: impl ToString,
    ) -> Error {
        self.input.corrupt(self.at, format!("{what} of column {name:?}"), expected, found)
    }
}
