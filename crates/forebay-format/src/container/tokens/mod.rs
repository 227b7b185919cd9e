//! Files of tokens, of which a sample is a window: consecutive tokens, in most trainings one more
//! than the context has, since targets are inputs shifted by one.
//!
//! The tokens are the elements of an npy array of one axis, all bytes of a file or those after a
//! header (`llm_c.rs`), those of a pair of Megatron-LM (`megatron.rs`), or those of a chunk of
//! `LitData`. A file that begins like another format is refused. Windows begin every `stride`
//! tokens and may overlap. The layouts and the windows are in `docs/formats/tokens.md`.

mod llm_c;
mod megatron;

use std::ops::Range;
use std::path::Path;

use forebay_types::{Dtype, Field, Layout};
use xxhash_rust::xxh3::xxh3_128;

use super::npy::{Array, ItemKind, MAGIC};
use crate::container::signature::{self, Detected};
use crate::container::{Column, Container, ScanSummary, header_digest, index_json, litdata};
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass, ShardState, Writer};
use crate::{Documents, Error, Format, OpenOptions, SampleAxis, TokenLayout};
use megatron::Pair;

/// Name of the field.
const TOKENS: &str = "tokens";

/// Samples between two reports of progress.
const TELL_EVERY: u64 = 1 << 16;

/// An opened file of tokens.
#[derive(Debug)]
pub(crate) struct TokenFile {
    input: Input,
    layout: TokenLayout,
    name: String,
    dtype: Dtype,
    /// Where the tokens are [bytes from the start of the file].
    place: Range<u64>,
    pair: Option<Pair>,
    state: ShardState,
    warnings: Vec<String>,
}

/// What a file says of its tokens.
struct TokenFacts {
    dtype: Option<Dtype>,
    place: Range<u64>,
    pair: Option<Pair>,
    header: Vec<u8>,
}

impl TokenFile {
    /// Opens a file whose windows the options describe, or the chunks that a directory of `LitData`
    /// lists.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Vec<Self>, Error> {
        if path.is_dir() {
            if options.tokens.as_ref().is_some_and(|layout| layout.header_bytes.is_some()) {
                let message = format!("{}: header_bytes= is for files of tokens alone", path.display());
                return Err(Error::Usage { message, hint: "leave it out".to_owned() });
            }
            if !path.join(index_json::NAME).exists() {
                return Err(Error::Unsupported {
                    path: path.to_owned(),
                    what: "a directory of tokens".to_owned(),
                    found: format!("no {} of LitData in it", index_json::NAME),
                    hint: format!(
                        "name the files: forebay.tokens({:?}, ...)",
                        path.join("*.bin").display().to_string()
                    ),
                });
            }
            let chunks = litdata::token_chunks(path)?.into_iter();
            let found = |litdata::TokenChunk { input, dtype, place }| {
                let header = place.start.to_le_bytes().to_vec();
                let found = TokenFacts { dtype: Some(dtype), place, pair: None, header };
                Self::of(path, input, found, options)
            };
            return chunks.map(found).collect();
        }
        let input = Input::open(path)?;
        let found = look(&input, options.tokens.as_ref())?;
        Ok(vec![Self::of(path, input, found, options)?])
    }

    /// Takes a file in which these tokens were found.
    fn of(path: &Path, input: Input, found: TokenFacts, options: &OpenOptions) -> Result<Self, Error> {
        let Some(layout) = options.tokens.clone() else {
            return Err(Error::Usage {
                message: format!("{}: the windows of its tokens are not known", path.display()),
                hint: "forebay.tokens(path, window=..., dtype=...) opens files of tokens".to_owned(),
            });
        };
        if layout.window == 0 || layout.stride == 0 {
            let message = format!("{}: a window or a stride of 0 tokens", path.display());
            return Err(Error::Usage { message, hint: String::new() });
        }
        let name = match &options.fields[..] {
            [] => TOKENS.to_owned(),
            [name] => name.clone(),
            names => {
                return Err(Error::Usage {
                    message: format!("{}: {} fields are asked for", path.display(), names.len()),
                    hint: "a file of tokens has one; give it one name, or none".to_owned(),
                });
            }
        };
        let TokenFacts { dtype, place, pair, header } = found;
        let dtype = decide_dtype(&input, layout.dtype, dtype)?;
        if pair.is_none() && layout.documents == Documents::Cut {
            return Err(input.unsupported(
                "documents=\"cut\"",
                "a file that does not say where documents begin",
                "write it with Megatron-LM's tools, which write a .bin and an .idx file; or leave documents= out",
            ));
        }
        let (item_bytes, mut warnings) = (dtype.item_bytes() as u64, Vec::new());
        let odd = (place.end - place.start) % item_bytes;
        if odd > 0 {
            let shown = input.path().display();
            warnings
                .push(format!("{shown}: the last {odd} bytes are no token of {item_bytes} and are not read"));
        }
        let place = place.start..place.end - odd;
        let state = header_digest(&header);
        Ok(Self { input, layout, name, dtype, place, pair, state, warnings })
    }

    fn item_bytes(&self) -> u64 {
        self.dtype.item_bytes() as u64
    }

    fn tokens(&self) -> u64 {
        (self.place.end - self.place.start) / self.item_bytes()
    }

    /// Calls `visit` with the tokens of each window, in order.
    fn windows(&self, mut visit: impl FnMut(Range<u64>) -> Result<(), Error>) -> Result<(), Error> {
        let TokenLayout { window, stride, .. } = self.layout;
        if let (Documents::Cut, Some(pair)) = (self.layout.documents, &self.pair) {
            for document in pair.documents(self.item_bytes())? {
                let mut first = document.start;
                while first < document.end {
                    let end = first.saturating_add(window).min(document.end);
                    visit(first..end)?;
                    if end == document.end {
                        break;
                    }
                    first = first.saturating_add(stride);
                }
            }
            return Ok(());
        }
        if let Some(pair) = &self.pair {
            // Who asks for the documents of a window later reads a checked index.
            pair.documents(self.item_bytes())?;
        }
        let tokens = self.tokens();
        let count = tokens.checked_sub(window).map_or(0, |rest| rest / stride + 1);
        (0..count).try_for_each(|number| visit(number * stride..number * stride + window))
    }
}

/// Finds out what kind of file it is, unless the caller said where its tokens begin.
fn look(input: &Input, layout: Option<&TokenLayout>) -> Result<TokenFacts, Error> {
    if let Some(header_bytes) = layout.and_then(|layout| layout.header_bytes) {
        if header_bytes > input.bytes() {
            let expected = format!("at least {header_bytes}, as header_bytes= says");
            return Err(input.corrupt(0, "bytes of the file", expected, input.bytes()));
        }
        let place = header_bytes..input.bytes();
        return Ok(TokenFacts {
            dtype: None,
            place,
            pair: None,
            header: header_bytes.to_le_bytes().to_vec(),
        });
    }
    let mut magic = [0; MAGIC.len()];
    let count = input.read_most(0, &mut magic)?;
    if count == magic.len() && magic == MAGIC {
        let (array, header) = Array::read(input, 0..input.bytes(), "npy", SampleAxis::First)?;
        let dtype = match array.item.kind {
            ItemKind::Number(dtype) => dtype,
            ItemKind::Described(found) => {
                let hint = "numpy's astype makes integers in the byte order of this machine";
                return Err(input.unsupported("tokens that are no integers of this machine", found, hint));
            }
        };
        if array.shape.len() != 1 {
            let found = format!("an array of shape {:?}", array.shape);
            return Err(input.unsupported(
                "tokens in more than one axis",
                found,
                "numpy.ravel makes one axis",
            ));
        }
        let place = array.start..array.start + array.bytes();
        return Ok(TokenFacts { dtype: Some(dtype), place, pair: None, header });
    }
    let place = 0..input.bytes();
    if let Some(pair) = Pair::open(input)? {
        let header = pair.state();
        return Ok(TokenFacts { dtype: Some(pair.dtype()), place, pair: Some(pair), header });
    }
    if let Some((header, dtype)) = llm_c::header(input)? {
        let place = header.len() as u64..input.bytes();
        return Ok(TokenFacts { dtype: Some(dtype), place, pair: None, header });
    }
    let are_bytes = layout.and_then(|layout| layout.dtype).is_some_and(|dtype| dtype.item_bytes() == 1);
    refuse_others(input, are_bytes)?;
    Ok(TokenFacts { dtype: None, place, pair: None, header: Vec::new() })
}

/// Refuses a file that is something else by its first bytes. Letters may be tokens of a byte each.
fn refuse_others(input: &Input, are_bytes: bool) -> Result<(), Error> {
    const AS_THEY_ARE: &str = "header_bytes=0 takes all its bytes as tokens";
    let (found, hint) = match signature::of(input)? {
        Detected::Like(Format::Npz) => (
            "it looks like a zip archive (npz)".to_owned(),
            "unpack it, or write the ids alone, as numpy.save and ndarray.tofile do",
        ),
        Detected::Like(format) => (
            format!("it looks like {}", format.name()),
            "write the ids alone, as numpy.save and ndarray.tofile do; forebay.open reads the file as it is",
        ),
        Detected::Other(name) => {
            (format!("it looks like {name}"), "write the ids alone, as numpy.save and ndarray.tofile do")
        }
        Detected::Compressed(compression) => {
            let hint = format!("{}; {AS_THEY_ARE}", compression.hint(input.path()));
            let found = format!("it looks like a file compressed with {}", compression.name);
            return Err(input.unsupported("tokens in another format", found, hint));
        }
        Detected::Text(text) if !are_bytes => (
            format!("it looks like {}", text.name()),
            "tokenize it, and write the ids with numpy.save; dtype=\"u1\" takes its bytes as tokens",
        ),
        Detected::Text(_) | Detected::Unknown | Detected::Empty => return Ok(()),
    };
    Err(input.unsupported("tokens in another format", found, format!("{hint}; {AS_THEY_ARE}")))
}

/// The type of the tokens, of what the caller said and what the file says.
fn decide_dtype(input: &Input, asked: Option<Dtype>, found: Option<Dtype>) -> Result<Dtype, Error> {
    let path = input.path().display();
    let dtype = match (asked, found) {
        (Some(asked), Some(found)) if asked != found => {
            let (asked, found) = (asked.name(), found.name());
            let message = format!("{path}: dtype={asked}, and the file says that its tokens are {found}");
            return Err(Error::Usage { message, hint: "leave dtype= out".to_owned() });
        }
        (Some(dtype), _) | (None, Some(dtype)) => dtype,
        (None, None) => {
            let message = format!("{path}: the file does not say of which type its tokens are");
            return Err(Error::Usage { message, hint: "pass dtype=, for example dtype=\"u2\"".to_owned() });
        }
    };
    if matches!(dtype, Dtype::Bool | Dtype::Float16 | Dtype::Float32 | Dtype::Float64) {
        return Err(input.unsupported("tokens that are no integers", dtype.name(), ""));
    }
    Ok(dtype)
}

impl Container for TokenFile {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        let layout = match self.layout.documents {
            Documents::Ignore => Layout::Dense(vec![self.layout.window]),
            Documents::Cut => Layout::Ragged,
        };
        let field = Field::new(&self.name, self.dtype, layout);
        Ok(vec![Column { field, classes: vec![RecordClass::tight("window")] }])
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let item_bytes = self.item_bytes();
        let (mut samples, mut end) = (0_u64, 0);
        self.windows(|tokens| {
            let start = self.place.start + tokens.start * item_bytes;
            let length = (tokens.end - tokens.start) * item_bytes;
            writer.push([IndexEntry::Plain { class: 0, start, length }]);
            (samples, end) = (samples + 1, tokens.end);
            let goes_on = samples % TELL_EVERY != 0 || progress(start);
            goes_on.then_some(()).ok_or(Error::Interrupted)
        })?;
        let mut warnings = self.warnings.clone();
        let rest = self.tokens() - end;
        if rest > 0 {
            let (path, tokens, window) = (self.input.path().display(), self.tokens(), self.layout.window);
            warnings.push(format!(
                "{path}: the last {rest} of {tokens} tokens fill no window of {window} and are left out"
            ));
        }
        Ok(ScanSummary { warnings, ..ScanSummary::default() })
    }

    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut facts = serde_json::Map::new();
        facts.insert("tokens".to_owned(), self.tokens().into());
        facts.insert("window".to_owned(), self.layout.window.into());
        facts.insert("stride".to_owned(), self.layout.stride.into());
        facts
    }

    fn explain_empty(&self, _: &ScanSummary, _: &[&str]) -> (String, String) {
        let (tokens, window) = (self.tokens(), self.layout.window);
        (format!("{tokens} tokens, and windows of {window}"), "choose a smaller window".to_owned())
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.input.check_unchanged()?;
        self.pair.as_ref().map_or(Ok(()), Pair::check_unchanged)
    }
}

/// Hash of a header, as bytes of the state.
fn hash(bytes: &[u8]) -> Vec<u8> {
    xxh3_128(bytes).to_le_bytes().to_vec()
}
