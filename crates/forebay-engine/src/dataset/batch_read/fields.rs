//! Decodes records by their schema and field decoders into the places of their fields.

use std::sync::OnceLock;

use forebay_format::FieldOut;
use forebay_image::{ImageDecoder, SampleKey};
use forebay_types::Layout;

use crate::dataset::batch_read::place::Place;
use crate::dataset::batch_read::workers::in_threads;
use crate::dataset::batch_read::{BatchRead, Decoded};
use crate::error::Error;
use crate::host::Host;

impl BatchRead {
    /// Reads the records into memory of this call with `readers` threads, and decodes them with
    /// `decoders`.
    pub(super) fn decode(
        &self,
        places: &[Option<Place>],
        readers: usize,
        decoders: usize,
        caller: &dyn Host,
    ) -> Result<Decoded, Error> {
        let columns = self.located.columns();
        let cells = self.samples.len() * columns;
        let lengths: Vec<usize> =
            (0..cells).map(|cell| self.column_bytes(cell / columns, cell % columns) as usize).collect();
        let mut records = vec![0; lengths.iter().sum()];
        let mut into = Vec::with_capacity(cells);
        let mut rest = records.as_mut_slice();
        for length in &lengths {
            let (record, after) = std::mem::take(&mut rest).split_at_mut(*length);
            // SAFETY: this part of `records` is used by nothing else before the places are dropped.
            into.push(unsafe { Place::new(std::ptr::NonNull::from(&mut *record).cast(), *length) });
            rest = after;
        }
        self.scatter(&into, readers, caller)?;
        drop(into);
        let mut starts = Vec::with_capacity(cells);
        let mut end = 0;
        for length in &lengths {
            starts.push(end);
            end += length;
        }
        let decoded: Vec<OnceLock<Vec<Vec<u8>>>> =
            std::iter::repeat_with(OnceLock::new).take(self.samples.len()).collect();
        in_threads(self.samples.len(), decoders, caller, |sample, memory| {
            let columns: Vec<&[u8]> = (sample * columns..(sample + 1) * columns)
                .map(|cell| &records[starts[cell]..starts[cell] + lengths[cell]])
                .collect();
            let fields = self.decoding.fields().len();
            let places = &places[sample * fields..(sample + 1) * fields];
            let ragged = self.decode_record(sample, &columns, places, &mut memory.images)?;
            let _ = decoded[sample].set(ragged);
            Ok(())
        })?;
        Ok(decoded.into_iter().map(|ragged| ragged.into_inner().unwrap_or_default()).collect())
    }

    /// Decodes one record; returns the values of its ragged fields.
    fn decode_record(
        &self,
        sample: usize,
        columns: &[&[u8]],
        places: &[Option<Place>],
        images: &mut ImageDecoder,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let is_ragged = |place: usize| self.decoding.fields()[place].layout == Layout::Ragged;
        let mut ragged: Vec<Vec<u8>> = Vec::new();
        ragged.resize_with((0..places.len()).filter(|place| is_ragged(*place)).count(), Vec::new);
        let mut takes: Vec<_> =
            ragged.iter_mut().map(|value| |bytes: &[u8]| value.extend_from_slice(bytes)).collect();
        let mut takes = takes.iter_mut();
        let mut out: Vec<FieldOut<'_>> = Vec::with_capacity(places.len());
        for place in places {
            match place {
                // SAFETY: a place of the caller's, which only the thread of this sample writes.
                Some(place) => out.push(FieldOut::Dense(unsafe { place.bytes_mut() })),
                None => out.extend(takes.next().map(|take| FieldOut::Ragged(take))),
            }
        }
        let key = SampleKey { sample: self.samples[sample].0, ..SampleKey::default() };
        let decoded = self.decoding.decode(self.index.schema(), columns, key, images, &mut out);
        drop(out);
        decoded.map_err(|(column, error)| self.bad_sample(sample, column, error))?;
        Ok(ragged)
    }
}
