//! Reads over UCX on one machine, where its library is installed (`libucp.so.0`): its TCP instead
//! of RDMA, with the same calls.

// A test may panic where there are no threads.
#![allow(clippy::disallowed_methods)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_transport::{
    Destination, Fetcher, Peer, Piece, Share, TransportError, Ucx, UcxExporter, UcxFetcher, UcxPeer,
    UcxPolicy,
};

/// A watchdog against hangs.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// The library; a test that finds none says so and ends.
fn library(policy: UcxPolicy) -> Option<Ucx> {
    Ucx::find(policy).inspect_err(|reason| eprintln!("skipped: {reason}")).ok()
}

fn share_of(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 9)) as u8).collect()
}

fn peer(exporter: &UcxExporter) -> UcxPeer {
    UcxPeer { name: "node1".into(), card: exporter.card().to_vec() }
}

/// Memory for these extents, and its pieces; the tests keep it until the fetcher is dropped.
fn pieces_of(memory: &mut [u8], extents: &[(u64, usize)]) -> Vec<Piece> {
    let mut rest = memory;
    let mut pieces = Vec::new();
    for &(offset, length) in extents {
        let (part, behind) = rest.split_at_mut(length);
        rest = behind;
        // SAFETY: the test reads the memory after the request was answered only.
        pieces.push(Piece { offset, into: unsafe { Destination::new(NonNull::from(part).cast(), length) } });
    }
    pieces
}

fn fetch(fetcher: &UcxFetcher, step: u64, extents: &[(u64, usize)]) -> Result<Vec<u8>, TransportError> {
    let mut memory = vec![0; extents.iter().map(|(_, length)| length).sum()];
    let ticket = fetcher.fetch(Peer(0), step, &pieces_of(&mut memory, extents))?;
    fetcher.wait(ticket, soon())?;
    Ok(memory)
}

#[test]
fn reads_are_the_bytes_of_the_share() {
    let Some(ucx) = library(UcxPolicy::AnyTransport) else { return };
    let share = share_of(8 << 20);
    let exporter = UcxExporter::start(&ucx, Arc::new(share.clone()) as Arc<dyn Share>).unwrap();
    let fetcher = UcxFetcher::new(&ucx, vec![peer(&exporter)], 4).unwrap();
    assert!(!fetcher.transports().is_empty());
    let cases: [&[(u64, usize)]; 5] = [
        &[(0, 1)],
        &[(5, 0), (5, 3), (8, 100_000)],
        &[(0, 8 << 20)],
        &[(1, 4096), (5000, 12_345), (3 << 20, 1 << 20)],
        &[((8 << 20) - 7, 7)],
    ];
    for (step, extents) in cases.iter().enumerate() {
        let expected: Vec<u8> = extents
            .iter()
            .flat_map(|&(offset, length)| share[offset as usize..][..length].to_vec())
            .collect();
        assert_eq!(fetch(&fetcher, step as u64, extents).unwrap(), expected, "case {step}");
    }
    let many: Vec<(u64, usize)> = (0..2000).map(|at| (at * 4000, 3000)).collect();
    let found = fetch(&fetcher, 9, &many).unwrap();
    assert!(found.chunks(3000).zip(&many).all(|(part, (at, _))| part == &share[*at as usize..][..3000]));
}

#[test]
fn threads_share_a_fetcher_and_a_reconnect_gives_memory_back() {
    let Some(ucx) = library(UcxPolicy::AnyTransport) else { return };
    let share = share_of(4 << 20);
    let exporter = UcxExporter::start(&ucx, Arc::new(share.clone()) as Arc<dyn Share>).unwrap();
    let fetcher = UcxFetcher::new(&ucx, vec![peer(&exporter)], 4).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fetcher, share) = (&fetcher, &share);
            scope.spawn(move || {
                for step in 0..50 {
                    let at = thread * 1000 + step * 7;
                    let found = fetch(fetcher, step, &[(at, 3000), (2 << 20, 50_000)]).unwrap();
                    assert_eq!(found[..3000], share[at as usize..][..3000]);
                    assert_eq!(found[3000..], share[2 << 20..][..50_000]);
                }
            });
        }
    });
    let mut memory = vec![0; 1 << 20];
    let ticket = fetcher.fetch(Peer(0), 7, &pieces_of(&mut memory, &[(0, 1 << 20)])).unwrap();
    fetcher.reconnect(Peer(0)).unwrap();
    let stale = fetcher.wait(ticket, soon());
    assert!(matches!(stale, Err(TransportError::Stale { step: 7, .. })), "{stale:?}");
    assert_eq!(fetch(&fetcher, 8, &[(10, 20)]).unwrap(), share[10..30]);
}

#[test]
fn bad_requests_and_cards_are_refused_before_a_read() {
    let Some(ucx) = library(UcxPolicy::AnyTransport) else { return };
    let exporter = UcxExporter::start(&ucx, Arc::new(vec![1_u8; 100]) as Arc<dyn Share>).unwrap();
    let fetcher = UcxFetcher::new(&ucx, vec![peer(&exporter)], 1).unwrap();
    for extents in [&[][..], &[(50, 51)], &[(u64::MAX, 1)], &[(0, 10), (9, 1)], &[(20, 1), (10, 1)]] {
        assert!(matches!(fetch(&fetcher, 0, extents), Err(TransportError::Usage { .. })), "{extents:?}");
    }
    assert_eq!(fetch(&fetcher, 0, &[(0, 10)]).unwrap(), [1_u8; 10]);
    let card = UcxPeer { name: "other".into(), card: vec![0; 30] };
    let reason = UcxFetcher::new(&ucx, vec![card], 1).unwrap_err();
    assert!(reason.starts_with("node other: "), "{reason}");
}

#[test]
fn a_library_without_rdma_is_refused_with_the_transports_it_would_use() {
    let Some(any) = library(UcxPolicy::AnyTransport) else { return };
    let exporter = UcxExporter::start(&any, Arc::new(vec![1_u8; 100]) as Arc<dyn Share>).unwrap();
    let rdma = any.with_policy(UcxPolicy::Rdma);
    match UcxFetcher::new(&rdma, vec![peer(&exporter)], 1) {
        Ok(fetcher) => assert!(fetcher.transports().iter().any(|name| name.starts_with(['r', 'd']))),
        Err(reason) => assert!(reason.contains("and no rc or dc transport"), "{reason}"),
    }
}

#[test]
fn after_the_end_of_a_peer_a_read_fails_or_has_the_right_bytes() {
    let Some(ucx) = library(UcxPolicy::AnyTransport) else { return };
    // Stays in memory, so that a transport within the machine may still read it.
    let share = Arc::new(share_of(1 << 20));
    let exporter = UcxExporter::start(&ucx, Arc::clone(&share) as Arc<dyn Share>).unwrap();
    let fetcher = UcxFetcher::new(&ucx, vec![peer(&exporter)], 4).unwrap();
    fetch(&fetcher, 0, &[(0, 10)]).unwrap();
    drop(exporter);
    let mut memory = vec![0; 1 << 20];
    let ticket = fetcher.fetch(Peer(0), 1, &pieces_of(&mut memory, &[(0, 1 << 20)]));
    let end = Instant::now() + Duration::from_secs(5);
    match ticket.and_then(|ticket| fetcher.wait(ticket, end)) {
        Ok(()) => assert_eq!(memory, *share),
        Err(TransportError::Lost { step: 1, node, .. }) => assert_eq!(node, "node1"),
        Err(TransportError::Deadline { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    // The memory is free once the fetcher is dropped.
    drop(fetcher);
    memory.fill(1);
}
