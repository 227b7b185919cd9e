//! What a node exports: shares by store, and what its server threads have in common.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::message::auth::{Authenticator, DatasetDigest, StoreId};
use crate::server::share::Share;

/// An exported share.
pub(crate) struct Exported {
    pub(crate) share: Arc<dyn Share>,
    pub(crate) dataset: DatasetDigest,
    /// Its connections are to be closed.
    pub(crate) withdrawn: AtomicBool,
    /// Authenticated connections to it.
    clients: AtomicUsize,
}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exported({} bytes)", self.share.bytes())
    }
}

/// The serving side of a node.
#[derive(Debug)]
pub(crate) struct ServingNode {
    pub(crate) index: u32,
    pub(crate) authenticator: Authenticator,
    /// Most bytes that one connection sends before it is the turn of the next \[bytes\].
    pub(crate) turn_bytes: usize,
    max_connections: usize,
    connections: AtomicUsize,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) stopping: AtomicBool,
    shares: RwLock<HashMap<StoreId, Arc<Exported>>>,
}

impl ServingNode {
    pub(crate) fn new(index: u32, secret: Authenticator, max_connections: usize, turn_bytes: usize) -> Self {
        Self {
            index,
            authenticator: secret,
            turn_bytes,
            max_connections,
            connections: AtomicUsize::new(0),
            sent_bytes: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            shares: RwLock::default(),
        }
    }

    /// Adds a share; `false` if the store has one.
    pub(crate) fn add(&self, store: StoreId, share: Arc<dyn Share>, dataset: DatasetDigest) -> bool {
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        let free = !shares.contains_key(&store);
        if free {
            let exported =
                Exported { share, dataset, withdrawn: AtomicBool::new(false), clients: AtomicUsize::new(0) };
            shares.insert(store, Arc::new(exported));
        }
        free
    }

    /// Removes a share; `false` if there is none.
    pub(crate) fn remove(&self, store: StoreId) -> bool {
        let removed = self.shares.write().unwrap_or_else(PoisonError::into_inner).remove(&store);
        if let Some(exported) = &removed {
            exported.withdrawn.store(true, Ordering::Release);
        }
        removed.is_some()
    }

    pub(crate) fn share(&self, store: StoreId) -> Option<Arc<Exported>> {
        self.shares.read().unwrap_or_else(PoisonError::into_inner).get(&store).cloned()
    }

    /// Counts an authenticated connection to a share; `None` if there are too many.
    pub(crate) fn admit(self: &Arc<Self>, exported: &Arc<Exported>) -> Option<Admission> {
        exported.clients.fetch_add(1, Ordering::Relaxed);
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let admission = Admission { node: Arc::clone(self), exported: Arc::clone(exported) };
        (before < self.max_connections).then_some(admission)
    }

    /// Number of authenticated connections to the share of a store.
    pub(crate) fn clients(&self, store: StoreId) -> usize {
        self.share(store).map_or(0, |exported| exported.clients.load(Ordering::Relaxed))
    }

    /// Number of authenticated connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Counts one authenticated connection until it is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    node: Arc<ServingNode>,
    exported: Arc<Exported>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.exported.clients.fetch_sub(1, Ordering::Relaxed);
        self.node.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::auth::Secret;

    const STORES: [StoreId; 2] = [StoreId(0), StoreId(1)];
    const MAX_CONNECTIONS: usize = 3;

    #[test]
    fn threads_that_add_remove_and_admit_never_exceed_the_limit_and_leave_no_count() {
        let authenticator = Authenticator::new(&Secret::new([1; 32]));
        let node = Arc::new(ServingNode::new(0, authenticator, MAX_CONNECTIONS, 1));
        let share = Arc::new(vec![1_u8; 10]);
        let dataset = DatasetDigest([0; 32]);
        let admitted = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6_usize {
                let (node, share, admitted) = (&node, &share, &admitted);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let store = STORES[(thread + round) % 2];
                        if thread == 0 {
                            node.add(store, Arc::clone(share) as Arc<dyn Share>, dataset);
                            node.remove(STORES[round % 2]);
                            continue;
                        }
                        let Some(exported) = node.share(store) else { continue };
                        if let Some(admission) = node.admit(&exported) {
                            assert!(admitted.fetch_add(1, Ordering::SeqCst) < MAX_CONNECTIONS);
                            std::thread::yield_now();
                            admitted.fetch_sub(1, Ordering::SeqCst);
                            drop(admission);
                        }
                    }
                });
            }
        });
        for store in STORES {
            node.remove(store);
        }
        assert_eq!(node.connections(), 0);
        assert_eq!(Arc::strong_count(&share), 1, "no connection keeps a share that was removed");
    }
}
