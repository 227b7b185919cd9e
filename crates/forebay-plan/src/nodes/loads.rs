//! How a node loads what it keeps of a dataset in memory: threads take parts of it, one after the
//! other, and read each once, in the order of the files.

/// Chunks that a thread reads at a time for a store: large reads reach all servers of a striped
/// file.
pub const LOAD_CHUNKS: usize = 8;

/// Bytes that a thread reads at a time for resident units \[bytes\].
pub const LOAD_BYTES: u64 = 8 << 20;

/// Threads that load from storage of other nodes, and from local storage.
const NETWORK_THREADS: usize = 8;
const LOCAL_THREADS: usize = 2;

/// How many threads load. `is_local`: from storage of this node.
#[must_use]
pub fn load_threads(is_local: bool) -> usize {
    if is_local { LOCAL_THREADS } else { NETWORK_THREADS }
}

#[cfg(test)]
mod tests {
    #[test]
    fn more_threads_load_over_a_network() {
        assert!(super::load_threads(false) > super::load_threads(true));
    }
}
