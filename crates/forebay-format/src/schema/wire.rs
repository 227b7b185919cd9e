//! The protobuf wire format: fields by number and type, without a schema.
//!
//! A message is parsed as a list of [`Piece`]s. A length-delimited field is given by its range, and
//! its bytes are not read, so a message can be parsed through a window ([`Message`]) without
//! reading an image in the middle. Groups, which protobuf has abandoned, are refused. Source:
//! protobuf's "Encoding" page.

use std::cell::RefCell;

use crate::{SchemaError, varint};

/// Most bytes that a tag and a number after it take \[bytes\].
pub(super) const MAX_HEAD_BYTES: usize = 20;

/// A message of which only the starts of fields are read.
pub(super) trait Message {
    /// Length of the message \[bytes\].
    fn bytes(&self) -> u64;

    /// The bytes from `at` on: [`MAX_HEAD_BYTES`], or as many as the message has.
    fn window(&mut self, at: u64) -> Result<&[u8], SchemaError>;
}

impl Message for &[u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn window(&mut self, at: u64) -> Result<&[u8], SchemaError> {
        Ok(&self[at as usize..])
    }
}

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Varint(u64),
    /// Eight bytes from here on.
    Fixed64,
    /// Bytes that start at `at` of the message.
    Bytes {
        at: u64,
        length: u64,
    },
    /// Four bytes that start at `at` of the message.
    Fixed32 {
        at: u64,
    },
}

impl Piece {
    /// Whether a reader that passes over the field loses something: an empty string and a zero are
    /// what an absent field is.
    pub(super) fn holds_data(self) -> bool {
        match self {
            Self::Varint(value) => value != 0,
            Self::Bytes { length, .. } => length > 0,
            Self::Fixed32 { .. } | Self::Fixed64 => true,
        }
    }

    /// The contents, for messages.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Varint(value) => format!("the number {value}"),
            Self::Bytes { length, .. } => format!("{length} bytes"),
            Self::Fixed32 { .. } => "4 bytes".to_owned(),
            Self::Fixed64 => "8 bytes".to_owned(),
        }
    }
}

/// What becomes of fields that a message's schema has no place for.
pub(super) enum Unknown<'a> {
    /// One that holds data is an error: decoding would drop it.
    Refuse,
    /// Records the first one that holds data, and continues with the rest of the message.
    Note(&'a RefCell<Option<SchemaError>>),
}

impl Unknown<'_> {
    /// Meets field `number` of `message`, which begins at `at`.
    #[inline]
    pub(super) fn meet(&self, message: &str, number: u64, piece: Piece, at: u64) -> Result<(), SchemaError> {
        if !piece.holds_data() {
            return Ok(());
        }
        self.report(SchemaError::new(
            format!("{message}: field {number}"),
            at,
            "nothing, as the schema has no such field",
            piece.describe(),
        ))
    }

    /// Takes the error of something that would be dropped.
    pub(super) fn report(&self, error: SchemaError) -> Result<(), SchemaError> {
        match self {
            Self::Refuse => Err(error),
            Self::Note(noted) => {
                noted.borrow_mut().get_or_insert(error);
                Ok(())
            }
        }
    }
}

/// Calls `each` with the number, the value and the place of every field, in order.
pub(super) fn walk(
    message: &mut impl Message,
    mut each: impl FnMut(u64, Piece, u64) -> Result<(), SchemaError>,
) -> Result<(), SchemaError> {
    let mut fields = Fields::new(0, message.bytes());
    while let Some((number, piece)) = fields.next(message)? {
        each(number, piece, fields.place())?;
    }
    Ok(())
}

/// The fields of a message, or of one that is a stretch of it, one after the other.
pub(super) struct Fields {
    at: u64,
    end: u64,
    place: u64,
}

impl Fields {
    /// The fields of the `length` bytes at `at`, which are within the message.
    pub(super) fn new(at: u64, length: u64) -> Self {
        Self { at, end: at + length, place: at }
    }

    /// Where the field begins that came last.
    pub(super) fn place(&self) -> u64 {
        self.place
    }

    /// Number and value of the next field.
    #[inline]
    pub(super) fn next(&mut self, message: &mut impl Message) -> Result<Option<(u64, Piece)>, SchemaError> {
        let Self { at, end, .. } = *self;
        if at >= end {
            return Ok(None);
        }
        let window = message.window(at)?;
        let window = &window[..window.len().min((end - at) as usize)];
        let (tag, tag_bytes) = varint(window, at)?;
        let (number, kind) = (tag >> 3, tag & 7);
        if number == 0 || number > 0x1fff_ffff {
            return Err(SchemaError::new("field number", at, "1 to 536870911", number));
        }
        let value_at = at + tag_bytes as u64;
        let rest = end - value_at;
        let cut = |at: u64, length: u64, rest: u64| {
            SchemaError::new(
                format!("field {number}"),
                at,
                format!("{length} bytes"),
                format!("{rest} bytes"),
            )
        };
        let (piece, next) = match kind {
            0 => {
                let (value, value_bytes) = varint(&window[tag_bytes..], value_at)?;
                (Piece::Varint(value), value_at + value_bytes as u64)
            }
            1 if rest < 8 => return Err(cut(value_at, 8, rest)),
            1 => (Piece::Fixed64, value_at + 8),
            2 => {
                let (length, length_bytes) = varint(&window[tag_bytes..], value_at)?;
                let data_at = value_at + length_bytes as u64;
                if length > end - data_at {
                    return Err(cut(data_at, length, end - data_at));
                }
                (Piece::Bytes { at: data_at, length }, data_at + length)
            }
            5 if rest < 4 => return Err(cut(value_at, 4, rest)),
            5 => (Piece::Fixed32 { at: value_at }, value_at + 4),
            _ => {
                let found =
                    if kind == 3 || kind == 4 { "a group".to_owned() } else { format!("type {kind}") };
                return Err(SchemaError::new(
                    format!("field {number}: wire type"),
                    at,
                    "0, 1, 2 or 5",
                    found,
                ));
            }
        };
        (self.at, self.place) = (next, at);
        Ok(Some((number, piece)))
    }
}

/// A varint at the start of `window`, which is `at` of the message, and its length.
#[inline]
pub(super) fn varint(window: &[u8], at: u64) -> Result<(u64, usize), SchemaError> {
    varint::decode(window).ok_or_else(|| {
        let found = if window.len() < 10 { "the end of the message" } else { "no end within 10" };
        SchemaError::new("varint", at, "at most 10 bytes", found)
    })
}

/// Reads a stretch of a record: `read(at, into)` fills `into` from byte `at` of the record on.
pub(crate) type ReadRecord<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), crate::Error>;

/// Bytes per read \[bytes\]: one read for the fields before the pixels of an image, one for those
/// after.
const WINDOW_BYTES: u64 = 256;

/// Most bytes per read \[bytes\]: the tags of thousands of unpacked floats lie close together.
const MAX_WINDOW_BYTES: u64 = 1 << 20;

/// A message that is read piece by piece, only where fields begin.
pub(super) struct Windowed<'a> {
    bytes: u64,
    read: ReadRecord<'a>,
    window: Vec<u8>,
    window_at: u64,
    /// Why a read failed; the parse then ends with an error that has no other content.
    pub(super) failure: Option<crate::Error>,
}

impl<'a> Windowed<'a> {
    /// A record of `bytes` bytes.
    pub(super) fn new(bytes: u64, read: ReadRecord<'a>) -> Self {
        Self { bytes, read, window: Vec::new(), window_at: 0, failure: None }
    }
}

impl Message for Windowed<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn window(&mut self, at: u64) -> Result<&[u8], SchemaError> {
        let wanted_end = self.bytes.min(at + MAX_HEAD_BYTES as u64);
        let window_end = self.window_at + self.window.len() as u64;
        if at < self.window_at || wanted_end > window_end {
            let adjacent = (self.window_at..=window_end).contains(&at);
            let twice = (2 * self.window.len() as u64).clamp(WINDOW_BYTES, MAX_WINDOW_BYTES);
            let bytes = if adjacent { twice } else { WINDOW_BYTES };
            self.window.resize((self.bytes - at).min(bytes) as usize, 0);
            self.window_at = at;
            if let Err(failure) = (self.read)(at, &mut self.window) {
                self.failure = Some(failure);
                return Err(SchemaError::new("record", at, "bytes", "a failed read"));
            }
        }
        Ok(&self.window[(at - self.window_at) as usize..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(mut message: &[u8]) -> Result<Vec<(u64, Piece)>, SchemaError> {
        let mut found = Vec::new();
        walk(&mut message, |number, piece, _| {
            found.push((number, piece));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn fields_of_every_type_are_found() {
        let message = [
            [0x08, 0x96, 0x01].as_slice(),
            &[0x11, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x1a, 2, 9, 9],
            &[0x25, 1, 2, 3, 4],
            &[0xf8, 0xff, 0xff, 0xff, 0x0f, 0],
        ]
        .concat();
        assert_eq!(
            pieces(&message),
            Ok(vec![
                (1, Piece::Varint(150)),
                (2, Piece::Fixed64),
                (3, Piece::Bytes { at: 14, length: 2 }),
                (4, Piece::Fixed32 { at: 17 }),
                (536_870_911, Piece::Varint(0)),
            ])
        );
        assert_eq!(pieces(&[]), Ok(vec![]));
    }

    #[test]
    fn broken_messages_are_refused_with_the_place() {
        for (message, text) in [
            (vec![0x08], "varint at byte 1"),
            (vec![0x08, 0x80], "varint at byte 1"),
            ([vec![0x08], vec![0xff; 11]].concat(), "varint at byte 1"),
            (vec![0x00, 0x00], "field number at byte 0"),
            (vec![0x11, 1, 2], "field 2 at byte 1 of the record: expected 8 bytes, found 2 bytes"),
            (vec![0x1a, 5, 1], "field 3 at byte 2 of the record: expected 5 bytes, found 1 bytes"),
            ([vec![0x1a], vec![0xff; 9], vec![1]].concat(), "field 3 at byte 11"),
            (vec![0x25, 1], "field 4 at byte 1"),
            (vec![0x0b, 0x0c], "found a group"),
            (vec![0x0c], "found a group"),
            (vec![0x0e], "found type 6"),
        ] {
            let error = pieces(&message).expect_err("broken").to_string();
            assert!(error.contains(text), "{message:02x?}: {error}");
        }
    }
}
