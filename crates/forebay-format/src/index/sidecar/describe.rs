//! What a sidecar is of, read without the dataset.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::contents::Contents;
use super::header::{HEADER_BYTES, SidecarHeader};

/// Files of a dataset that are named, at most.
const MAX_NAMES: usize = 16;

/// Format, number of samples and files of the dataset of a sidecar; none if the file is no sound
/// sidecar.
#[must_use]
pub fn describe(path: &Path) -> Option<Value> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let mut file = File::options().read(true).custom_flags(flags as i32).open(path).ok()?;
    let file_bytes = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    let mut head = vec![0; HEADER_BYTES];
    file.read_exact(&mut head).ok()?;
    let fingerprint = SidecarHeader::decode(&head, file_bytes).ok()?.fingerprint;
    file.read_to_end(&mut head).ok()?;
    let contents = Contents::read(&head, fingerprint).ok()?;
    let names: Vec<&str> =
        contents.meta.shards.iter().take(MAX_NAMES).map(|shard| shard.name.as_str()).collect();
    Some(json!({
        "format": contents.meta.format,
        "samples": contents.header.samples,
        "files": contents.meta.shards.len(),
        "names": names,
    }))
}
