//! The gather threads of a rank, whether the thread of the script fills batches itself, and the
//! threads of a node that serve its share.

use std::time::Duration;

/// Gather threads of a rank with an in-memory store, at least: each has a step in flight, or copies
/// while others have.
const STORE_THREADS: usize = 4;

/// Gather threads of a rank: copying 3 KB samples needs more than one, and the cores of a node are
/// shared by its ranks.
const GATHER_THREADS: usize = 4;

/// Cores from which a node has two server threads.
const TWO_THREADS_CORES: usize = 8;

/// Processor time of a script between two batches up to which no thread is woken to fill the next
/// one: what it computes on the same core delays that thread as well. Only where it waits busily
/// for an accelerator could a batch be filled meanwhile, which takes no longer than this.
const BRIEF: Duration = Duration::from_micros(500);

/// What the number of gather threads follows from.
#[derive(Clone, Copy, Debug)]
pub struct GatherFacts {
    /// Cores that the rank may use.
    pub cores: usize,
    /// Its batch buffers.
    pub buffers: usize,
    /// Its threads that decode images; 0 where none are decoded.
    pub decode_threads: usize,
    /// Requests to each other node that are in flight at most, where there is an in-memory store.
    pub store_requests: Option<usize>,
    /// Whether a plugged-in locator finds the samples of this rank, a step after the other.
    pub has_locator: bool,
}

/// Gather threads of a rank: as many as it has cores, at most the number of buffers but one; more
/// where they decode, or wait for other nodes most of the time.
#[must_use]
pub fn gather_threads(facts: &GatherFacts) -> usize {
    let &GatherFacts { cores, buffers, decode_threads, store_requests, has_locator } = facts;
    if has_locator {
        return 1;
    }
    let of_store = store_requests.map_or(0, |requests| requests.max(STORE_THREADS));
    cores.clamp(1, GATHER_THREADS).max(decode_threads).max(of_store).min(buffers - 1)
}

/// What decides whether the thread of the script fills the step that it needs next.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, not a state in disguise")]
pub struct CallerFillFacts {
    /// Cores that the rank may use.
    pub cores: usize,
    /// Whether the rank copies the step from a mapping.
    pub copies: bool,
    /// Whether it also decodes images, or reads replacements of bad samples: that could not be
    /// interrupted for long.
    pub decodes_or_replaces: bool,
    /// Whether the thread may meet SIGBUS: one that blocks it may not touch mappings.
    pub takes_signals: bool,
}

/// Whether the thread of the script may fill a step itself: where it shares a core with its gather
/// thread, and copies from a mapping.
#[must_use]
pub fn fills_in_caller(facts: &CallerFillFacts) -> bool {
    facts.cores == 1 && facts.copies && !facts.decodes_or_replaces && facts.takes_signals
}

/// Whether other threads are left asleep while the script fills what it needs: since its last batch
/// it has not waited, and has computed briefly.
#[must_use]
pub fn leaves_others_asleep(has_waited: bool, busy: Duration) -> bool {
    !has_waited && busy <= BRIEF
}

/// Number of server threads of a node, from its number of cores and of clients.
///
/// One thread takes 0.2 to 0.33 s of a core per GiB (samples of 64 and 3 KiB), so it serves 3 to 5
/// GiB/s. On two cores, a second one made 4 to 16 clients 1.0 to 1.25 times as fast and one client
/// no faster (`examples/transfer.rs`, `threads=1` and `threads=2`, loopback). It is worth a core
/// only of a node that has many, with networks above 25 Gbit/s. A connection stays with its thread.
#[must_use]
pub fn server_threads(cores: usize, clients: usize) -> usize {
    if cores >= TWO_THREADS_CORES && clients > 1 { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_nodes_with_several_clients_have_two_threads() {
        for (cores, clients, expected) in
            [(1, 16, 1), (2, 16, 1), (7, 16, 1), (8, 1, 1), (8, 0, 1), (8, 2, 2), (128, 1000, 2)]
        {
            assert_eq!(server_threads(cores, clients), expected, "{cores} cores, {clients} clients");
        }
    }

    #[test]
    fn gather_threads_follow_from_cores_buffers_and_what_they_wait_for() {
        for (cores, buffers, decode_threads, store_requests, has_locator, expected) in [
            (0, 8, 0, None, false, 1),
            (1, 8, 0, None, false, 1),
            (2, 8, 0, None, false, 2),
            (64, 8, 0, None, false, 4),
            (64, 3, 0, None, false, 2),
            // Threads that decode.
            (8, 18, 8, None, false, 8),
            (8, 5, 8, None, false, 4),
            (1, 2, 16, None, false, 1),
            // Threads that wait for other nodes.
            (1, 8, 0, Some(2), false, 4),
            (1, 8, 0, Some(6), false, 6),
            (1, 3, 0, Some(6), false, 2),
            // A locator takes steps in order.
            (8, 18, 8, Some(6), true, 1),
        ] {
            let facts = GatherFacts { cores, buffers, decode_threads, store_requests, has_locator };
            assert_eq!(gather_threads(&facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn the_script_fills_batches_itself_where_another_thread_would_only_take_its_core() {
        let facts =
            CallerFillFacts { cores: 1, copies: true, decodes_or_replaces: false, takes_signals: true };
        for (facts, expected) in [
            (facts, true),
            (CallerFillFacts { cores: 2, ..facts }, false),
            (CallerFillFacts { copies: false, ..facts }, false),
            (CallerFillFacts { decodes_or_replaces: true, ..facts }, false),
            (CallerFillFacts { takes_signals: false, ..facts }, false),
        ] {
            assert_eq!(fills_in_caller(&facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn other_threads_fill_ahead_where_the_script_waits_or_computes() {
        for (has_waited, busy_us, expected) in
            [(false, 0, true), (false, 500, true), (false, 501, false), (true, 0, false)]
        {
            assert_eq!(leaves_others_asleep(has_waited, Duration::from_micros(busy_us)), expected);
        }
    }
}
