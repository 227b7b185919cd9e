//! What an index needs of a column chunk besides its place: the length of each row's value.
//!
//! Parquet marks rows, lists and nulls by levels (Dremel). A value with a repetition level of 0
//! begins a row; one whose definition level is below the column's highest is null, or an empty
//! list.

use super::schema::ParquetField;
use crate::codec::parquet::{Records, Sink};
use crate::codec::{CodecError, ParquetNulls};

/// The first row with a null, and whether the row is null or an item of its list.
pub(super) type FirstNull = (u64, bool);

/// Collects the lengths of the rows of a column chunk.
pub(super) struct Lengths<'a> {
    field: &'a ParquetField,
    /// Length of each value of a byte string so far \[bytes\].
    strings: Vec<u64>,
    /// Items of each row so far; of byte strings unused.
    items: Vec<u64>,
    /// Rows so far.
    rows: u64,
    null: Option<FirstNull>,
}

impl<'a> Lengths<'a> {
    pub(super) fn new(field: &'a ParquetField) -> Self {
        Self { field, strings: Vec::new(), items: Vec::new(), rows: 0, null: None }
    }

    /// The first null.
    pub(super) fn null(&self) -> Option<FirstNull> {
        self.null
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Length of each row's value \[bytes\].
    pub(super) fn bytes(self) -> Vec<u64> {
        let item_bytes = u64::from(self.field.item_bytes);
        match (item_bytes, self.field.repetition) {
            (0, _) => self.strings,
            (_, 0) => vec![item_bytes; self.rows as usize],
            _ => self.items.into_iter().map(|items| items * item_bytes).collect(),
        }
    }

    /// The repetition level of item `item` of a row whose lists have fixed lengths.
    fn expected_level(&self, item: u64) -> i16 {
        let (mut level, mut rest) = (self.field.lists.len() as i16, item);
        for length in self.field.lists.iter().rev() {
            if rest % length != 0 {
                return level;
            }
            rest /= length;
            level -= 1;
        }
        level
    }

    fn wrong(&self, found: String) -> CodecError {
        let lists = &self.field.lists;
        CodecError::new("parquet", "lengths of lists", format!("{lists:?} in each row"), found)
    }

    /// Checks that the last row is complete, unless a null is reported anyway.
    pub(super) fn end(&self) -> Result<(), CodecError> {
        let (lists, last) = (&self.field.lists, self.items.last());
        match last {
            Some(items)
                if !lists.is_empty() && self.null.is_none() && *items != lists.iter().product::<u64>() =>
            {
                Err(self.wrong(format!("{items} items in row {} of the row group", self.rows - 1)))
            }
            _ => Ok(()),
        }
    }
}

impl Sink for Lengths<'_> {
    fn value(&mut self, value: &[u8]) -> Result<(), CodecError> {
        if self.field.item_bytes == 0 {
            self.strings.push(value.len() as u64);
        }
        Ok(())
    }

    fn records(&mut self, records: &Records<'_>) -> Result<(), CodecError> {
        let ParquetField { definition, repetition, list_definition, nulls, .. } = *self.field;
        let are_refused = nulls == ParquetNulls::None;
        if repetition == 0 {
            if records.values < records.rows && are_refused {
                let place = records.definition.iter().position(|level| *level < definition).unwrap_or(0);
                self.null.get_or_insert((self.rows + place as u64, true));
            }
            self.rows += records.rows as u64;
            return Ok(());
        }
        for (place, level) in records.repetition.iter().enumerate() {
            let defined = records.definition.get(place).copied().unwrap_or(definition);
            if *level == 0 {
                self.end()?;
                self.items.push(0);
                self.rows += 1;
            }
            let row = self.rows.saturating_sub(1);
            let Some(items) = self.items.last().copied() else {
                return Err(self.wrong("a list that begins in no row".to_owned()));
            };
            if defined == definition {
                if !self.field.lists.is_empty() && self.expected_level(items) != *level {
                    return Err(self.wrong(format!("others in row {row} of the row group")));
                }
                *self.items.last_mut().expect("just looked at") += 1;
            } else if *level > 0 || defined > list_definition || defined < list_definition && are_refused {
                let is_row = defined < list_definition && self.field.lists.is_empty();
                self.null.get_or_insert((row, is_row));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{Dtype, Field, Layout};
    use parquet::basic::Type as Physical;

    use super::*;

    fn field(lists: &[u64], repetition: i16) -> ParquetField {
        ParquetField {
            number: 0,
            field: Field::new("x", Dtype::Int32, Layout::Ragged),
            physical: Physical::INT32,
            item_bytes: 4,
            definition: 2 * repetition + 1,
            repetition,
            list_definition: 1,
            lists: lists.to_vec(),
            nulls: ParquetNulls::None,
        }
    }

    fn lengths(
        field: &ParquetField,
        definition: &[i16],
        repetition: &[i16],
    ) -> Result<(Vec<u64>, Option<FirstNull>), CodecError> {
        let mut found = Lengths::new(field);
        let rows = repetition.iter().filter(|level| **level == 0).count();
        let values = definition.iter().filter(|level| **level == field.definition).count();
        found.records(&Records { rows, values, definition, repetition })?;
        found.end()?;
        let null = found.null();
        Ok((found.bytes(), null))
    }

    #[test]
    fn rows_have_the_items_between_two_levels_of_zero() {
        let found = lengths(&field(&[], 1), &[3, 3, 1, 3], &[0, 1, 0, 0]).expect("sound");
        assert_eq!(found, (vec![8, 0, 4], None));
    }

    #[test]
    fn null_lists_and_null_items_are_found_by_row() {
        assert_eq!(lengths(&field(&[], 1), &[3, 0], &[0, 0]).expect("levels").1, Some((1, true)));
        assert_eq!(lengths(&field(&[], 1), &[3, 3, 2], &[0, 0, 1]).expect("levels").1, Some((1, false)));
    }

    #[test]
    fn null_lists_are_empty_where_a_mask_tells_them_and_null_items_are_found() {
        let masked = ParquetField { nulls: ParquetNulls::Zeros, ..field(&[], 1) };
        assert_eq!(lengths(&masked, &[3, 0, 1], &[0, 0, 0]).expect("levels"), (vec![4, 0, 0], None));
        assert_eq!(lengths(&masked, &[3, 3, 2], &[0, 0, 1]).expect("levels").1, Some((1, false)));
    }

    #[test]
    fn lists_of_fixed_lengths_have_exactly_these() {
        let square = field(&[2, 2], 2);
        assert_eq!(lengths(&square, &[5; 8], &[0, 2, 1, 2, 0, 2, 1, 2]).expect("squares").0, [16, 16]);
        assert!(lengths(&square, &[5; 4], &[0, 2, 2, 1]).is_err());
        assert!(lengths(&square, &[5; 3], &[0, 2, 1]).is_err());
        assert!(lengths(&square, &[5; 5], &[0, 2, 1, 2, 1]).is_err());
        assert!(lengths(&square, &[5; 1], &[1]).is_err());
    }
}
