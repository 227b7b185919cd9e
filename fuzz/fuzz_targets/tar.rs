//! Any bytes as a tar file: its members lie within it, or it is refused.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use forebay_format::file::Input;
use forebay_format::sidecar::IndexEntry;
use forebay_format::tar::TarFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let read = |fields: &[String]| {
        let input = Input::from_source(Path::new("fuzzed"), Arc::new(bytes.to_vec()))?;
        TarFile::read(input, fields)
    };
    let Ok(file) = read(&[]) else { return };
    let check = |places: &[IndexEntry]| {
        for place in places {
            let IndexEntry::Plain { start, length, .. } = place else { continue };
            let end = start.checked_add(*length);
            assert!(end.is_some_and(|end| end <= bytes.len() as u64), "a member within the file");
        }
        Ok(())
    };
    let _ = file.samples(&|_| true, &mut |places| check(places));
    if let Some(field) = file.fields().first()
        && let Ok(file) = read(&[field.clone(), "__key__".to_owned()])
    {
        let _ = file.samples(&|_| true, &mut |places| check(places));
    }
});
