//! What counts the samples of a file of arrays: its first axis, or the file itself.
//!
//! HDF5, npy and npz hold arrays. Nothing in them says whether the first axis counts samples (the
//! file is a shard) or belongs to a sample (the file is one sample). The first axis counts unless
//! the caller chooses otherwise ([`SampleAxis`]). If the caller chose nothing and the shapes are no
//! evidence, [`Dataset::sample_axis_doubt`] names both readings. The rule is [`is_doubtful`], a
//! pure function of the shapes.

use forebay_types::{Field, Layout};

use super::Dataset;
use crate::{Error, Format, Index, SampleAxis};

/// Fewest files that are doubted: two files of equal shape may well be two shards.
const MIN_FILES: usize = 3;

/// Largest first extent that is doubted: larger ones are no axis of one sample.
const MAX_DOUBTED: u64 = 1 << 14;

/// How much longer than the longest other axis the first one may be to be taken for an axis of the
/// same sample.
const ALIKE: u64 = 2;

/// Fields and shapes that a message names, at most.
const NAMED_FIELDS: usize = 4;

/// The shape of one sample of a field, as far as the rule needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SampleShape {
    /// Its axes, without the one that counts samples.
    axes: Vec<u64>,
    /// Whether an element is one number; strings and structures are records.
    is_number: bool,
}

/// Whether files of so many rows, with fields of these shapes, are likely one sample each.
///
/// Evidence for shards: few files, files of different numbers of rows, one row or very many, a
/// first axis much longer than all others, elements that are records, and fields that have nothing
/// but the first axis in common (a label per row).
fn is_doubtful(rows: &[u64], fields: &[SampleShape]) -> bool {
    let Some(first) = rows.first() else { return false };
    let is_uniform = rows.len() >= MIN_FILES && rows.iter().all(|other| other == first);
    if !is_uniform || !(2..=MAX_DOUBTED).contains(first) || fields.iter().any(|field| !field.is_number) {
        return false;
    }
    match fields {
        [] => false,
        // Single numbers as samples.
        [field] if field.axes.is_empty() => true,
        fields => {
            let second = fields[0].axes.first();
            let share_more = second.is_some() && fields.iter().all(|field| field.axes.first() == second);
            let longest = fields.iter().flat_map(|field| &field.axes).max();
            share_more && longest.is_some_and(|longest| *first <= longest.saturating_mul(ALIKE))
        }
    }
}

/// The shape of a field's samples; `None` where their length varies.
fn shape_of(field: &Field) -> Option<SampleShape> {
    let Layout::Dense(shape) = &field.layout else { return None };
    // The last axis of another type of numpy's is the bytes of an item.
    let axes = if field.numpy.is_some() { &shape[..shape.len().saturating_sub(1)] } else { &shape[..] };
    // Numbers in the other byte order and complex ones are numbers: their description is one word,
    // such as >f4.
    let kind = field.numpy.as_deref().map(|text| text.trim_start_matches(['<', '>', '|', '=']));
    let is_number = kind.is_none_or(|kind| kind.starts_with(['i', 'u', 'f', 'c', 'b']));
    Some(SampleShape { axes: axes.to_vec(), is_number })
}

/// A shape as Python writes it.
fn tuple(axes: &[u64]) -> String {
    match axes {
        [one] => format!("({one},)"),
        axes => format!("({})", axes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl Dataset {
    /// What counts the samples, in the words of `forebay inspect`.
    pub(super) fn counted_by(&self) -> &'static str {
        match self.format {
            Format::Hdf5 | Format::Npy | Format::Npz if !self.options.sample_axis.is_file() => "first axis",
            Format::Hdf5 | Format::Npy | Format::Npz | Format::Folder => "file",
            Format::Tar => "base name",
            Format::Tokens => "window",
            Format::Arrow | Format::Parquet => "row",
            Format::ArrayRecord
            | Format::LitData
            | Format::Lmdb
            | Format::Mds
            | Format::Raw
            | Format::RecordIo
            | Format::TfRecord => "record",
        }
    }

    /// Refuses one sample per file where files hold no arrays.
    pub(super) fn check_sample_axis(format: Format, axis: SampleAxis) -> Result<(), Error> {
        if !axis.is_file() || format.has_axes() {
            return Ok(());
        }
        Err(Error::Usage {
            message: format!(
                "sample_axis=None is for files of arrays: expected hdf5, npy or npz, found {}",
                format.name()
            ),
            hint: "leave sample_axis= out; where each file of a directory is one sample of bytes, name the directory \
                   and format=\"folder\""
                .to_owned(),
        })
    }

    /// Both readings of the files, if their shapes leave them open and the caller did not choose.
    pub(super) fn sample_axis_doubt(&self, index: &Index) -> Option<String> {
        if self.options.sample_axis != SampleAxis::Auto || !self.format.has_axes() {
            return None;
        }
        let rows: Vec<u64> = index.shards().iter().map(|shard| shard.samples).collect();
        let shapes: Vec<SampleShape> = index.fields().iter().map(shape_of).collect::<Option<_>>()?;
        if !is_doubtful(&rows, &shapes) {
            return None;
        }
        let (files, first) = (rows.len(), rows[0]);
        let named = index.fields().iter().zip(&shapes).take(NAMED_FIELDS);
        let mut arrays: Vec<String> = named
            .map(|(field, shape)| {
                format!("{:?} {}", field.name, tuple(&[&[first], &shape.axes[..]].concat()))
            })
            .collect();
        if shapes.len() > NAMED_FIELDS {
            arrays.push(format!("{} more", shapes.len() - NAMED_FIELDS));
        }
        Some(format!(
            "{} and {} more files: all hold arrays of one shape ({}), and nothing shows whether the first axis counts \
             samples: read as {first} samples per file, {} in all, not as {files} samples, one per file\nhint: say \
             sample_axis=None if each file is one sample, or sample_axis=0 if the first axis counts samples (--sample-axis \
             none, --sample-axis 0)",
            self.shards[0].path.display(),
            files - 1,
            arrays.join(", "),
            index.samples(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(axes: &[&[u64]]) -> Vec<SampleShape> {
        axes.iter().map(|axes| SampleShape { axes: axes.to_vec(), is_number: true }).collect()
    }

    #[test]
    fn files_of_equal_shape_without_evidence_of_a_sample_axis_are_doubted() {
        for (files, rows, fields) in [
            (3, 76, &[&[115, 16][..]][..]),
            (121_216, 768, &[&[1152, 16], &[1152]]),
            (10, 512, &[&[512, 512, 4]]),
            (1000, 3, &[&[224, 224]]),
            (1000, 224, &[&[224, 3]]),
            (400, 16_000, &[&[]]),
            (400, 80, &[&[3000]]),
            (12, 100, &[&[64, 64]]),
        ] {
            assert!(is_doubtful(&vec![rows; files], &shapes(fields)), "{files} files of {rows} × {fields:?}");
        }
    }

    #[test]
    fn shards_are_not_doubted() {
        let (image, label, logits): (&[u64], &[u64], &[u64]) = (&[224, 224, 3], &[], &[10]);
        for (rows, fields, why) in [
            (vec![50_000; 20], &[image, label][..], "labels"),
            (vec![1000; 100], &[image, label], "labels"),
            (vec![64; 100], &[image, label], "labels, small shards"),
            (vec![64; 100], &[image, logits], "nothing but the first axis in common"),
            (vec![1000; 100], &[image], "much longer than all other axes"),
            (vec![50_000; 20], &[&[65_536][..]], "too long for an axis of a sample"),
            (vec![100, 100, 100, 37], &[image], "a last shard that is shorter"),
            (vec![76], &[&[115, 16]], "one file"),
            (vec![76; 2], &[&[115, 16]], "two files"),
            (vec![1; 100], &[image], "one row either way"),
            (vec![100; 100], &[label, label], "a table of columns"),
            (vec![], &[image], "no file"),
            (vec![100; 100], &[], "no field"),
        ] {
            assert!(!is_doubtful(&rows, &shapes(fields)), "{why}");
        }
        let records = SampleShape { axes: vec![], is_number: false };
        assert!(!is_doubtful(&[100; 5], &[records]), "structures, or strings");
    }

    #[test]
    fn elements_of_other_types_are_numbers_unless_they_are_records() {
        use forebay_types::Dtype;
        let of = |numpy: &str| {
            let field = Field::new("x", Dtype::Uint8, Layout::Dense(vec![5, 8]));
            shape_of(&Field { numpy: Some(numpy.to_owned()), ..field }).expect("dense")
        };
        for (numpy, is_number) in
            [(">f4", true), ("<c8", true), ("|S8", false), ("<U2", false), ("[('a', '<i4')]", false)]
        {
            assert_eq!(of(numpy), SampleShape { axes: vec![5], is_number }, "{numpy}");
        }
        let plain = Field::new("x", Dtype::Float32, Layout::Dense(vec![5, 8]));
        assert_eq!(shape_of(&plain).expect("dense").axes, [5, 8]);
        assert_eq!(shape_of(&Field::new("x", Dtype::Uint8, Layout::Ragged)), None);
    }

    #[test]
    fn a_file_that_is_one_sample_has_a_first_axis_of_one() {
        assert_eq!(SampleAxis::File.shape(vec![76, 115]), [1, 76, 115]);
        assert_eq!(SampleAxis::File.shape(vec![]), [1]);
        assert_eq!(SampleAxis::First.shape(vec![76, 115]), [76, 115]);
        assert_eq!((tuple(&[7]), tuple(&[7, 8]), tuple(&[])), ("(7,)".into(), "(7, 8)".into(), "()".into()));
    }
}
