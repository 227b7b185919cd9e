//! Measures what the network between nodes carries, for `explain()`: each leader fetches from the
//! next one, in a ring, for a moment.
//!
//! It fetches zeros that each node exports as a store of their own, so neither data nor the count
//! of clients change. A probe that fails reports nothing: the ranks connect later, and raise.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_transport::{
    DatasetDigest, Destination, Exporter, Fetcher, FetcherOptions, Peer, PeerAddress, Piece, Secret, StoreId,
    TcpFetcher, TransportError,
};
use forebay_types::Rank;
use serde::{Deserialize, Serialize};

/// The store that is fetched from.
const PROBE: StoreId = StoreId(u32::MAX);
const DATASET: DatasetDigest = DatasetDigest([0; 32]);
/// Bytes of a request, and requests in flight \[bytes\]: small enough that a slow network answers
/// several of them in the time.
const REQUEST_BYTES: usize = 256 << 10;
const IN_FLIGHT: usize = 4;
/// When the measurement ends: most networks carry some MiB in this time.
const TIME: Duration = Duration::from_millis(40);
/// Bytes after which it ends \[bytes\].
const MAX_PROBE_BYTES: u64 = 32 << 20;
/// Requests of one byte of which the fastest counts.
const ROUND_TRIPS: u64 = 8;
/// When it is given up if nothing has arrived.
const PATIENCE: Duration = Duration::from_secs(2);
const MIB: f64 = (1 << 20) as f64;

/// What one node measured towards the next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) rate_mib_s: f64,
    pub(crate) round_trip_us: f64,
}

/// What all nodes measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NetworkProbe {
    /// Of this node.
    #[serde(flatten)]
    pub(crate) own: Measured,
    /// The lowest rate of all nodes.
    pub(crate) slowest_rate_mib_s: f64,
}

impl NetworkProbe {
    /// Combines what the nodes measured; `None` if this one could not.
    pub(super) fn of(measured: &[Option<Measured>], own_node: usize) -> Option<Self> {
        let own = (*measured.get(own_node)?)?;
        let rates = measured.iter().flatten().map(|measured| measured.rate_mib_s);
        Some(Self { own, slowest_rate_mib_s: rates.fold(f64::INFINITY, f64::min) })
    }
}

/// Lets other nodes probe this one.
pub(super) fn open(exporter: &Exporter) -> Result<(), TransportError> {
    exporter.export(PROBE, Arc::new(vec![0_u8; REQUEST_BYTES]), DATASET)
}

/// Ends that.
pub(super) fn close(exporter: &Exporter) {
    exporter.withdraw(PROBE);
}

/// Measures towards one node.
pub(super) fn measure(peer: PeerAddress, rank: Rank, secret: [u8; 32]) -> Option<Measured> {
    let node = peer.name.clone();
    let measured = try_measure(peer, rank, secret);
    measured.inspect_err(|error| tracing::info!(%error, node, "the network was not measured")).ok()
}

fn try_measure(peer: PeerAddress, rank: Rank, secret: [u8; 32]) -> Result<Measured, TransportError> {
    // Outlives the fetcher, which may write to it until it is dropped.
    let mut memory = vec![0_u8; IN_FLIGHT * REQUEST_BYTES];
    let mut places = Vec::new();
    for place in memory.chunks_mut(REQUEST_BYTES) {
        places.push(NonNull::from(place).cast::<u8>());
    }
    let identity = (PROBE, DATASET);
    let mut options = FetcherOptions::new(rank, Secret::new(secret), identity, vec![peer]);
    (options.max_in_flight, options.connect_time) = (IN_FLIGHT, PATIENCE);
    let fetcher = TcpFetcher::new(options)?;
    let end = Instant::now() + PATIENCE;
    fetcher.ready(end)?;
    let fetch = |step: u64, bytes: usize| {
        // SAFETY: at most `IN_FLIGHT` requests are in flight, so the one before in this place was
        // answered; `memory` outlives the fetcher.
        let into = unsafe { Destination::new(places[step as usize % IN_FLIGHT], bytes) };
        fetcher.fetch(Peer(0), step, &[Piece { offset: 0, into }])
    };
    let mut round_trip = Duration::MAX;
    for step in 0..ROUND_TRIPS {
        let begun = Instant::now();
        fetcher.wait(fetch(step, 1)?, end)?;
        round_trip = round_trip.min(begun.elapsed());
    }
    let (begun, mut received, mut tickets) = (Instant::now(), 0, VecDeque::new());
    for step in 0.. {
        if tickets.len() == IN_FLIGHT
            && let Some(ticket) = tickets.pop_front()
        {
            fetcher.wait(ticket, end)?;
            received += REQUEST_BYTES as u64;
            if begun.elapsed() >= TIME || received >= MAX_PROBE_BYTES {
                break;
            }
        }
        tickets.push_back(fetch(step, REQUEST_BYTES)?);
    }
    let seconds = begun.elapsed().as_secs_f64().max(1e-9);
    drop(fetcher);
    drop(memory);
    Ok(Measured {
        rate_mib_s: received as f64 / MIB / seconds,
        round_trip_us: round_trip.as_secs_f64() * 1e6,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use forebay_transport::ExporterOptions;

    use super::*;

    fn peer(address: SocketAddr) -> PeerAddress {
        PeerAddress { name: "next".into(), node: 1, addresses: vec![address] }
    }

    #[test]
    fn a_probe_measures_and_leaves_no_client_behind() {
        let exporter = Exporter::start(&ExporterOptions {
            node: 1,
            secret: Secret::new([3; 32]),
            address: ([127, 0, 0, 1], 0).into(),
            threads: 1,
            max_connections: 1,
        })
        .unwrap();
        assert_eq!(measure(peer(exporter.address()), Rank(0), [3; 32]), None, "not opened");
        open(&exporter).unwrap();
        let found = measure(peer(exporter.address()), Rank(0), [3; 32]).unwrap();
        assert!(found.rate_mib_s > 0.0 && found.round_trip_us > 0.0, "{found:?}");
        close(&exporter);
        assert_eq!(measure(peer(exporter.address()), Rank(0), [3; 32]), None, "closed");
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_not_measured() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(measure(peer(address), Rank(0), [3; 32]), None);
    }

    #[test]
    fn nodes_report_their_own_rate_and_the_lowest() {
        let measured = |rate_mib_s| Some(Measured { rate_mib_s, round_trip_us: 50.0 });
        let all = [measured(300.0), None, measured(200.0)];
        let probe = NetworkProbe::of(&all, 0).unwrap();
        assert_eq!((probe.own.rate_mib_s, probe.slowest_rate_mib_s), (300.0, 200.0));
        assert_eq!(NetworkProbe::of(&all, 1), None);
    }
}
