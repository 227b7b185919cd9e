//! A storage tier of each node, as it is asked for.

use forebay_model::{FileSystem, NodeId, ReadAheadRules, Spec};
use forebay_types::{CHUNK_BYTES, MAX_COPY_LEVELS};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::Machine;

/// A tier of each node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// The storage; none: memory.
    #[serde(default)]
    pub storage: Option<Spec>,
    /// What it may hold \[B\].
    pub bytes: u64,
}

impl Tier {
    /// Its empty file system on one node; none for memory.
    pub(crate) fn file_system(
        &self,
        machine: &Machine,
        seed: u64,
    ) -> Result<Option<(FileSystem, NodeId)>, Error> {
        let Some(spec) = &self.storage else { return Ok(None) };
        let spec = machine.with_page_cache(spec);
        let rules = ReadAheadRules::Linux { read_ahead_bytes: spec.read_ahead_bytes };
        let mut files = FileSystem::new(&spec, rules, seed)?;
        let node = files.add_node();
        Ok(Some((files, node)))
    }

    /// Validates tiers; the error names the first invalid number.
    pub(crate) fn check_all(tiers: &[Tier]) -> Result<(), Error> {
        if tiers.len() > MAX_COPY_LEVELS {
            return Err(Error::job("tiers", format!("at most {MAX_COPY_LEVELS}"), &tiers.len()));
        }
        for tier in tiers {
            if let Some(storage) = &tier.storage {
                storage.check()?;
            }
            if !(CHUNK_BYTES..=1 << 60).contains(&tier.bytes) {
                return Err(Error::job("tiers.bytes", format!("{CHUNK_BYTES} to 2^60"), &tier.bytes));
            }
        }
        Ok(())
    }
}
