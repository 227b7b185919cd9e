//! `forebay._native.*_tiers`: the tier daemon, and what it knows.

use std::path::PathBuf;
use std::time::Duration;

use forebay_engine::{Error, Host};
use forebay_tier::daemon::{Server, StoredTier, socket_path};
use forebay_tier::{SourceKey, TierConnection, TierError, clear, drop_copies};
use pyo3::prelude::*;

use crate::caller::detached;
use crate::daemon::thread::run_until_signal;
use crate::errors::raise;

fn failed(py: Python<'_>, error: TierError) -> PyErr {
    raise(py, &Error::from(error))
}

/// What a daemon answered; none if it has ended, as a daemon that is stopping does.
fn unless_ended<T>(answer: Result<T, TierError>) -> Result<Option<T>, TierError> {
    match answer {
        Err(error) if error.is_ended() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Serves until no loader was there for `idle_s`; calls `listening` when loaders can come. Returns
/// at once if this user has a daemon on this node.
#[pyfunction]
pub(crate) fn serve_tiers(py: Python<'_>, idle_s: f64, listening: &Bound<'_, PyAny>) -> PyResult<()> {
    let started = socket_path().and_then(|path| Server::start(&path, Duration::from_secs_f64(idle_s)));
    let server = started.map_err(|error| failed(py, error))?;
    let tell = || listening.call0().map(drop);
    let Some(server) = server else { return tell() };
    run_until_signal(py, "forebay-tiers", move |stop| server.run(stop), tell)
}

/// What the running daemon knows, as JSON; none without a daemon.
#[pyfunction]
pub(crate) fn tiers_usage(py: Python<'_>) -> PyResult<Option<String>> {
    let usage = || -> Result<Option<String>, TierError> {
        let Some(daemon) = TierConnection::existing(socket_path()?.socket())? else { return Ok(None) };
        let Some((levels, clients, pid)) = unless_ended(daemon.usage())? else { return Ok(None) };
        let known = serde_json::json!({"levels": levels, "clients": clients, "pid": pid});
        Ok(Some(known.to_string()))
    };
    py.detach(usage).map_err(|error| failed(py, error))
}

/// Deletes what no loader uses from these tiers, or of it what is at or below `source`; returns the
/// space given back.
#[pyfunction]
#[pyo3(signature = (tiers, *, source = None, progress = None))]
pub(crate) fn clear_tiers(
    py: Python<'_>,
    tiers: Vec<PathBuf>,
    source: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let freed = detached(py, progress, move |caller| {
        let connection = socket_path().and_then(|path| TierConnection::existing(path.socket()));
        let daemon = connection.map_err(Error::from)?;
        let mut go_on = |freed| caller.progress("bytes given back", freed, 0) && !caller.interrupted();
        clear(&tiers, source.as_deref(), daemon.as_ref(), &mut go_on).map_err(Error::from)
    })?;
    py.check_signals()?;
    Ok(freed)
}

/// Ends the daemon, unless loaders use it; returns how many do, none without a daemon.
#[pyfunction]
pub(crate) fn stop_tiers(py: Python<'_>) -> PyResult<Option<u32>> {
    let stop = || -> Result<Option<u32>, TierError> {
        let Some(daemon) = TierConnection::existing(socket_path()?.socket())? else { return Ok(None) };
        unless_ended(daemon.stop())
    };
    py.detach(stop).map_err(|error| failed(py, error))
}

/// What a tier holds, read from its log, as JSON; none if it holds nothing of this user.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the binding hands paths over by value
pub(crate) fn stored_tier(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    let read = || match StoredTier::open(&path)? {
        Some(stored) => stored.usage().map(Some),
        None => Ok(None),
    };
    let usage = py.detach(read).map_err(|error| failed(py, error))?;
    Ok(usage.map(|usage| serde_json::json!(usage).to_string()))
}

/// Compares all pieces that a tier holds with their checksums; the result as JSON, none if it holds
/// nothing of this user.
#[pyfunction]
#[pyo3(signature = (path, *, progress = None))]
pub(crate) fn verify_tier(
    py: Python<'_>,
    path: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Option<String>> {
    let verified = detached(py, progress, move |caller| {
        let Some(stored) = StoredTier::open(&path).map_err(Error::from)? else { return Ok(None) };
        let mut go_on = |done, all| caller.progress("pieces", done, all) && !caller.interrupted();
        Ok(Some(stored.verify(&mut go_on)))
    })?;
    py.check_signals()?;
    Ok(verified.map(|verified| serde_json::json!(verified).to_string()))
}

/// Compares all copies of a tier with their sources; the result as JSON, none if it holds nothing
/// of this user.
#[pyfunction]
#[pyo3(signature = (path, *, progress = None))]
pub(crate) fn compare_tier(
    py: Python<'_>,
    path: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Option<String>> {
    let compared = detached(py, progress, move |caller| {
        let Some(stored) = StoredTier::open(&path).map_err(Error::from)? else { return Ok(None) };
        let mut go_on = |done, all| caller.progress("pieces", done, all) && !caller.interrupted();
        Ok(Some(stored.compare(&mut go_on)))
    })?;
    py.check_signals()?;
    Ok(compared.map(|compared| serde_json::json!(compared).to_string()))
}

/// Forgets copies of a tier that are wrong: of sources, by their keys, and of files, by numbers.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the binding hands them over by value
pub(crate) fn drop_copies_of_tier(
    py: Python<'_>,
    path: PathBuf,
    sources: Vec<String>,
    files: Vec<u64>,
) -> PyResult<()> {
    let dropped = || {
        let connection = TierConnection::existing(socket_path()?.socket())?;
        let keys: Vec<SourceKey> = sources.iter().filter_map(|key| key.parse().ok()).collect();
        drop_copies(&path, &keys, &files, connection.as_ref())
    };
    py.detach(dropped).map_err(|error| failed(py, error))
}
