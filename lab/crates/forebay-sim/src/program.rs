//! Programs that read for themselves, without a loader: which bytes they touch, and when.

use forebay_model::AccessMethod;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Most workers of a rank, and batches of a worker.
const MOST: u32 = 1 << 10;

/// A program in place of the loader.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Each rank walks through a mapped LMDB file with a cursor, record by record, and takes the
    /// values of the samples of the rank. In `sequential` it passes those of all other ranks. It
    /// reads a batch when the script asks for it, not before.
    Cursor {
        /// Whether the kernel reads ahead on the mapping.
        read_ahead: bool,
    },
    /// Each rank reads its samples one after the other, or workers of it do.
    Samples(SampleReads),
}

/// How a program reads its samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, not a state in disguise")]
pub struct SampleReads {
    /// How it touches the files.
    pub access: AccessMethod,
    /// Processes or threads of each rank that read batches ahead; 0: the script reads each batch
    /// when it needs it.
    #[serde(default)]
    pub workers: u32,
    /// Batches that each worker may have read, or begun, before the script asks for them.
    #[serde(default = "one")]
    pub ahead: u32,
    /// Its own time for each sample, besides the read and the copy \[ns\].
    #[serde(default)]
    pub sample_ns: f64,
    /// It opens the file of each sample anew.
    #[serde(default)]
    pub opens: bool,
    /// It opens files anew in each epoch, when it comes to them.
    #[serde(default)]
    pub reopens: bool,
    /// Each rank reads all records of a step, with large reads, and keeps its own.
    #[serde(default)]
    pub reads_all: bool,
    /// Each rank lists all keys before the first batch.
    #[serde(default)]
    pub lists_keys: bool,
}

fn one() -> u32 {
    1
}

impl Program {
    /// Validates the numbers; the error names the first invalid one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Program::Samples(reads) = self else { return Ok(()) };
        if reads.workers > MOST {
            return Err(Error::job("program.workers", format!("at most {MOST}"), &reads.workers));
        }
        if !(1..=MOST).contains(&reads.ahead) {
            return Err(Error::job("program.ahead", format!("1 to {MOST}"), &reads.ahead));
        }
        if !(0.0..=1e12).contains(&reads.sample_ns) {
            return Err(Error::job("program.sample_ns", "0 to 1e12", &reads.sample_ns));
        }
        Ok(())
    }

    /// Threads of each rank that read.
    pub(crate) fn workers(&self) -> usize {
        match self {
            Program::Cursor { .. } => 1,
            Program::Samples(reads) => reads.workers.max(1) as usize,
        }
    }

    /// Batches of each rank: those that are read ahead, and the one that the script holds. One
    /// alone is read when the script asks for it.
    pub(crate) fn batches(&self) -> usize {
        match self {
            Program::Samples(reads) if reads.workers > 0 => (reads.workers * reads.ahead + 1) as usize,
            _ => 1,
        }
    }

    /// Whether it walks from record to record, or from key to key.
    pub(crate) fn walks(&self) -> bool {
        match self {
            Program::Cursor { .. } => true,
            Program::Samples(reads) => reads.lists_keys,
        }
    }

    /// Whether it takes page faults.
    pub(crate) fn takes_faults(&self) -> bool {
        matches!(self.access(), AccessMethod::Mmap | AccessMethod::MmapRandom)
    }

    /// How it touches the file.
    pub(crate) fn access(&self) -> AccessMethod {
        match self {
            Program::Cursor { read_ahead: true } => AccessMethod::Mmap,
            Program::Cursor { read_ahead: false } => AccessMethod::MmapRandom,
            Program::Samples(reads) => reads.access,
        }
    }
}
