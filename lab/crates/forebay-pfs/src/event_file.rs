//! Writes all events to a file as JSON lines: a header, then one array per read (see `events`).
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use forebay_model::Spec;
use serde_json::json;

use crate::context::Context;
use crate::locks::locked;

/// Version of the file's format.
const VERSION: u32 = 2;

/// Interval between writes.
const INTERVAL: Duration = Duration::from_millis(100);

/// Creates the file and writes its header.
pub(crate) fn create(path: &Path, spec: &Spec, time_scale: f64) -> io::Result<BufWriter<File>> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "{}", json!({"forebay_events": VERSION, "spec": spec, "time_scale": time_scale}))?;
    Ok(file)
}

/// Appends new events until `stop` is closed, and then the last ones.
pub(crate) fn append(context: &Context, file: &mut impl Write, stop: &Receiver<()>) -> io::Result<()> {
    let mut next = 0;
    loop {
        let stopping = !matches!(stop.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout));
        let state = locked(&context.state);
        let events = state.events.since(next);
        let end = state.events.next();
        drop(state);
        let lost = end - next - events.len() as u64;
        if lost > 0 {
            eprintln!(
                "forebay pfs: event file: lost {lost} events, which arrived faster than they were written"
            );
        }
        next = end;
        let mut rows = Vec::new();
        let numbers = locked(&context.numbers);
        for event in events {
            writeln!(rows, "{}", event.row(numbers.name(event.file)))?;
        }
        drop(numbers);
        file.write_all(&rows)?;
        file.flush()?;
        if stopping {
            return Ok(());
        }
    }
}
