//! What the leader of a node does with the store daemon of its user, if there is one.
//!
//! 1. [`Keeping::look`] asks for the share of the dataset, as its files are now.
//! 2. If that has the chunks that the node is to hold, it is used as it is. Else the chunks that it
//!    has are copied, and the others are read ([`Keeping::share`]).
//! 3. A share that was loaded is handed to the daemon, unless its files changed meanwhile.
//!
//! Memory that the daemon holds for later jobs gives way to this one: unused shares of other
//! datasets first, then that of this dataset, which is then loaded from the source.
//!
//! A daemon that fails is not asked again: the share is loaded from the source.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_format::{Dataset, Index};
use forebay_host::available_bytes;
use forebay_io::ShardFiles;
use forebay_plan::ChunkMap;
use forebay_tier::SourceState;
use forebay_types::CHUNK_BYTES;

use crate::base::fallback::{Fallback, Wanted};
use crate::dataset::tier_sources::sources;
use crate::error::Error;
use crate::host::Host;
use crate::store::daemon::{FoundShare, SharedDataset, StoreConnection, StoreDaemonError, share_bytes};
use crate::store::load::{LoadedBytes, load};

/// The files of a dataset.
#[derive(Clone, Copy)]
pub(super) struct ShareSource<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) files: &'a ShardFiles,
    pub(super) index: &'a Arc<Index>,
    pub(super) map: &'a ChunkMap,
}

/// See the module header.
pub(super) struct Keeping<'a> {
    source: ShareSource<'a>,
    caller: &'a dyn Host,
    session: Option<Session>,
    /// Why the daemon is not used, or does not keep the share.
    problem: Option<String>,
}

/// A daemon that answers.
struct Session {
    connection: StoreConnection,
    dataset: SharedDataset,
    /// The last change of a file was long enough ago.
    is_settled: bool,
    found: Option<FoundShare>,
    unused_bytes: u64,
}

/// Memory that a share may take besides what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptRoom {
    /// Memory of the daemon that this loader can use or free \[bytes\].
    pub(super) bytes: u64,
    /// Chunks of the kept share.
    pub(super) chunks: Option<u64>,
}

/// The share of this node.
pub(super) struct OwnShare {
    pub(super) memory: OwnedFd,
    pub(super) loaded: LoadedBytes,
    /// While it is open, the daemon holds the share.
    pub(super) connection: Option<StoreConnection>,
    pub(super) fallback: Option<Fallback>,
}

impl<'a> Keeping<'a> {
    /// Asks for the kept share of a dataset.
    pub(super) fn look(source: ShareSource<'a>, caller: &'a dyn Host) -> Result<Self, Error> {
        let mut keeping = Self { source, caller, session: None, problem: None };
        let connection = keeping.tried(StoreConnection::existing())?.flatten();
        if let Some(connection) = connection
            && let Some((dataset, is_settled)) = keeping.dataset()?
        {
            let found = connection.find(&dataset, &stop(caller));
            if let Some((found, unused_bytes)) = keeping.tried(found)? {
                keeping.session = Some(Session { connection, dataset, is_settled, found, unused_bytes });
            }
        }
        Ok(keeping)
    }

    /// The dataset as it is now, and whether a change from now on would be noticed.
    fn dataset(&mut self) -> Result<Option<(SharedDataset, bool)>, Error> {
        let now_ns =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_nanos() as i64);
        let ShareSource { dataset, files, index, map } = self.source;
        let (sources, states) = match sources(dataset, files, index, map, self.caller) {
            Ok(found) => found,
            Err(error) => {
                self.fail(error.to_string());
                return Ok(None);
            }
        };
        if self.caller.interrupted() {
            return Err(Error::Interrupted);
        }
        let (mut version, mut place, mut state) =
            (blake3::Hasher::new(), blake3::Hasher::new(), blake3::Hasher::new());
        version.update(&CHUNK_BYTES.to_le_bytes());
        for source in &sources {
            version.update(&source.key.0);
            place.update(&(source.path.len() as u64).to_le_bytes());
            place.update(source.path.as_bytes());
        }
        for SourceState { bytes, modified_ns, changed_ns } in &states {
            state.update(&bytes.to_le_bytes());
            state.update(&modified_ns.to_le_bytes());
            state.update(&changed_ns.to_le_bytes());
        }
        let path = sources.first().map_or_else(String::new, |first| match sources.len() - 1 {
            0 => first.path.clone(),
            more => format!("{} and {more} more", first.path),
        });
        let dataset = SharedDataset {
            version: version.finalize().to_hex().to_string(),
            place: place.finalize().to_hex().to_string(),
            state: state.finalize().to_hex().to_string(),
            path,
        };
        Ok(Some((dataset, states.iter().all(|state| state.is_settled(now_ns)))))
    }

    /// Memory that the share may take besides what is free.
    pub(super) fn room(&self) -> KeptRoom {
        self.session.as_ref().map_or_else(KeptRoom::default, |session| KeptRoom {
            bytes: session.unused_bytes + session.found_bytes(),
            chunks: session.found.as_ref().map(|found| found.chunks.len() as u64),
        })
    }

    /// The same, if the kept share is to be left to the loaders that use it, as the `chunks` of
    /// this one are others than its own; else `None`.
    pub(super) fn room_beside_others(&self, chunks: impl FnOnce() -> Vec<u64>) -> Option<KeptRoom> {
        let session = self.session.as_ref()?;
        let found = session.found.as_ref()?;
        let is_left = found.is_shared && found.chunks != chunks();
        is_left.then_some(KeptRoom { bytes: session.unused_bytes, chunks: None })
    }

    /// The share with these chunks, in ascending order; `node` of `nodes` is this one.
    pub(super) fn share(mut self, chunks: &[u64], (node, nodes): (usize, usize)) -> Result<OwnShare, Error> {
        if let Some(session) = &mut self.session
            && session.found.as_ref().is_some_and(|found| found.chunks == chunks)
            && let Some(found) = session.found.take()
        {
            let kept = chunks.iter().filter_map(|chunk| Some(self.source.map.geometry(*chunk)?.bytes)).sum();
            let connection = self.session.take().map(|session| session.connection);
            let loaded = LoadedBytes { source: 0, kept };
            return Ok(OwnShare { memory: found.memory, loaded, connection, fallback: None });
        }
        self.make_room(share_bytes(chunks.len() as u64))?;
        let mut found = self.session.as_mut().and_then(|session| session.found.take());
        let frees_bytes = found.as_ref().map_or(0, |found| found.map.len() as u64);
        let ShareSource { files, map, .. } = self.source;
        let (memory, loaded) = load(files, map, chunks, found.as_ref(), self.caller)?;
        // The daemon frees the old share when it has the new one.
        drop(found.take());
        if self.session.is_some() && self.is_unchanged()? {
            self.keep(&memory, chunks, (node as u32, nodes as u32), frees_bytes)?;
        }
        let problem = self.problem.take();
        let fallback = problem.map(|problem| Fallback::new(Wanted::KeptShare, problem));
        Ok(OwnShare { memory, loaded, connection: self.session.map(|session| session.connection), fallback })
    }

    /// Has the daemon free what a share of this length lacks \[bytes\].
    fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        let caller = self.caller;
        let lacks = bytes.saturating_sub(available_bytes());
        let Some(session) = self.session.as_mut().filter(|_| lacks > 0) else { return Ok(()) };
        let freed = session.connection.make_room(lacks, session.unused_bytes, &stop(caller));
        let Some(freed) = self.tried(freed)? else { return Ok(()) };
        let Some(session) = self.session.as_mut().filter(|_| freed < lacks) else { return Ok(()) };
        if let Some(found) = session.found.take() {
            // Memory is free once no process maps it.
            let bytes = found.map.len() as u64;
            drop(found);
            let dropped = session.connection.drop_share(bytes, &stop(caller));
            self.tried(dropped)?;
        }
        Ok(())
    }

    /// Whether the files are as they were before the share was loaded.
    fn is_unchanged(&mut self) -> Result<bool, Error> {
        let Some(session) = &self.session else { return Ok(false) };
        let before = session.dataset.version.clone();
        let problem = if session.is_settled {
            match self.dataset()? {
                None => return Ok(false),
                Some((now, _)) if now.version == before => return Ok(true),
                Some(_) => "the dataset was changed while it was loaded",
            }
        } else {
            "the dataset was changed less than 2 s before it was loaded: a later change might not be noticed"
        };
        self.problem = Some(format!("the share is not kept: {problem}"));
        self.session = None;
        Ok(false)
    }

    /// Hands a share to the daemon.
    fn keep(
        &mut self,
        memory: &OwnedFd,
        chunks: &[u64],
        node: (u32, u32),
        frees_bytes: u64,
    ) -> Result<(), Error> {
        let Some(session) = &self.session else { return Ok(()) };
        let frees_bytes = frees_bytes + session.unused_bytes;
        let dataset = &session.dataset;
        let kept =
            session.connection.keep(dataset, node, memory.as_fd(), chunks, frees_bytes, &stop(self.caller));
        if let Some(Some(room)) = self.tried(kept)? {
            let bytes = share_bytes(chunks.len() as u64);
            self.problem = Some(format!(
                "the share is not kept: it has {bytes} bytes, and the store daemon has room for {room}"
            ));
            self.session = None;
        }
        Ok(())
    }

    /// What the daemon answered; `None` if it failed, and is not asked again.
    fn tried<T>(&mut self, answer: Result<T, StoreDaemonError>) -> Result<Option<T>, Error> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(StoreDaemonError::Interrupted { .. }) => Err(Error::Interrupted),
            Err(error) => {
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                self.fail(format!("{error}{hint}"));
                Ok(None)
            }
        }
    }

    fn fail(&mut self, problem: String) {
        tracing::warn!(problem, "the store daemon is not used");
        self.session = None;
        self.problem = Some(problem);
    }
}

impl Session {
    fn found_bytes(&self) -> u64 {
        self.found.as_ref().map_or(0, |found| found.map.len() as u64)
    }
}

/// Whether waiting for the daemon should end.
fn stop(caller: &dyn Host) -> impl Fn() -> bool + '_ {
    || {
        caller.waits_for_others();
        caller.interrupted()
    }
}
