//! Threads that help the caller: as many as the system gives.
//!
//! The caller does the same work as these threads, so a limit of threads (`ulimit -u`, `pids.max`)
//! only makes it slower.

use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Starts up to `count` threads that `work`; fewer, or none, where the system refuses one.
pub(crate) fn start_up_to<'scope, T: Send + 'scope>(
    count: usize,
    scope: &'scope Scope<'scope, '_>,
    work: impl Fn() -> T + Clone + Send + 'scope,
) -> Vec<ScopedJoinHandle<'scope, T>> {
    (0..count)
        .map_while(|_| {
            let work = work.clone();
            Builder::new().name("forebay-format".into()).spawn_scoped(scope, work).ok()
        })
        .collect()
}
