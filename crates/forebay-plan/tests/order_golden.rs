//! Golden orders. An order is an on-disk promise: a run that resumes must get the stream that it
//! began with.

#![allow(clippy::unreadable_literal, reason = "the values are printed by a failing test and pasted")]

use std::sync::Arc;

use crate::order_common::{batch, epoch};
use forebay_plan::{
    LastBatch, Mixture, MixtureSource, MixtureSpec, NodeShares, Order, OrderKind, OrderSpec, OrderState,
    Resumption, ShareUnit, StateValue, Stop,
};
use forebay_types::{Rank, SampleId};

const ADVICE: &str = "an order changed. If that was not meant, undo it: runs could not resume. If it was, raise STATE_VERSION in \
                      src/order/state.rs, so that old states are refused, say so in CHANGELOG.md, and pin the new values here";

fn order(kind: OrderKind, last: LastBatch, samples: u64, size: u64, ranks: u64, lanes: Option<u64>) -> Order {
    Order::new(OrderSpec { kind, last_batch: last, seed: 42, samples, batch: size, ranks, lanes }).unwrap()
}

#[test]
fn shuffle_of_a_small_dataset() {
    let order = order(OrderKind::Shuffle, LastBatch::Fill, 20, 4, 2, None);
    assert_eq!(
        epoch(&order, 0),
        [5, 9, 11, 13, 19, 17, 1, 4, 2, 0, 18, 14, 16, 8, 7, 12, 15, 3, 6, 10, 5, 9, 11, 13],
        "{ADVICE}"
    );
    assert_eq!(
        epoch(&order, 1),
        [1, 17, 4, 8, 13, 18, 16, 2, 9, 6, 0, 12, 7, 11, 14, 15, 3, 19, 10, 5, 1, 17, 4, 8],
        "{ADVICE}"
    );
}

#[test]
fn shuffle_of_a_large_dataset() {
    let order = order(OrderKind::Shuffle, LastBatch::Drop, 1_281_167, 8, 4, None);
    assert_eq!(
        batch(&order, 0, 0, 0),
        [830222, 668023, 430717, 843787, 202520, 610848, 448756, 584623],
        "{ADVICE}"
    );
    assert_eq!(
        batch(&order, 89, 40_035, 3),
        [661367, 822595, 1058866, 633214, 1130989, 830392, 590877, 344968],
        "{ADVICE}"
    );
}

#[test]
fn shuffle_of_more_samples_than_32_bits_count() {
    let order = order(OrderKind::Shuffle, LastBatch::Partial, 5_000_000_000_000, 4, 1, None);
    assert_eq!(
        batch(&order, 1, 999_999_999_999, 0),
        [2317348605353, 1982014450060, 4321597352510, 1567428150574],
        "{ADVICE}"
    );
}

/// Units of 7 samples, shared by a node with ranks 0 and 1, and one with ranks 2 and 3.
fn shares(samples: u64) -> Arc<NodeShares> {
    let unit =
        |first: u64| ShareUnit { first_sample: SampleId(first), bytes: 100 * (samples - first).min(7) };
    let units: Vec<ShareUnit> = (0..samples).step_by(7).map(unit).collect();
    let nodes = [vec![Rank(0), Rank(1)], vec![Rank(2), Rank(3)]];
    Arc::new(NodeShares::new(samples, &units, &nodes, 3))
}

#[test]
fn shares_of_a_small_dataset() {
    let shares = shares(140);
    let nodes: String = (0..shares.units()).map(|unit| shares.holder(unit).to_string()).collect();
    assert_eq!((&*nodes, shares.digest()), ("11111101010000001001", 14760911976037424040), "{ADVICE}");
}

#[test]
fn local_shuffle_of_a_small_dataset() {
    let order =
        order(OrderKind::LocalShuffle { steps: 1 }, LastBatch::Fill, 40, 4, 4, None).on_nodes(shares(40));
    assert_eq!(
        epoch(&order, 0),
        [
            38, 39, 24, 23, 26, 36, 25, 30, 9, 4, 20, 2, 15, 5, 14, 22, 31, 35, 27, 28, 37, 1, 33, 18, 0, 6,
            10, 3, 11, 12, 8, 16, 32, 29, 34, 21, 38, 39, 15, 24, 19, 17, 7, 13, 9, 4, 20, 2
        ],
        "{ADVICE}"
    );
    assert_eq!(
        epoch(&order, 1),
        [
            30, 25, 22, 32, 28, 23, 26, 37, 15, 5, 9, 2, 8, 16, 18, 3, 36, 33, 24, 29, 38, 39, 31, 20, 11, 1,
            7, 14, 4, 13, 19, 0, 27, 35, 34, 21, 30, 25, 22, 32, 17, 6, 12, 10, 15, 28, 23, 5
        ],
        "{ADVICE}"
    );
}

#[test]
fn local_shuffle_in_pools_of_a_large_dataset() {
    let order = order(OrderKind::LocalShuffle { steps: 8 }, LastBatch::Drop, 1_281_167, 8, 4, None);
    let order = order.on_nodes(shares(1_281_167));
    assert_eq!(
        batch(&order, 0, 0, 0),
        [668023, 843787, 610848, 441247, 508252, 446655, 1143649, 1021051],
        "{ADVICE}"
    );
    assert_eq!(
        batch(&order, 89, 40_035, 3),
        [661367, 822595, 1058866, 633214, 1130989, 830392, 590877, 344968],
        "{ADVICE}"
    );
}

#[test]
fn opportunistic_of_a_small_dataset() {
    let order = order(OrderKind::Opportunistic { window: 2 }, LastBatch::Fill, 40, 4, 4, None);
    let order = order.with_residents(shares(40), |unit| unit % 2 == 0);
    assert_eq!(order.streamed_units(), [1, 3, 5], "{ADVICE}");
    assert_eq!(
        epoch(&order, 0),
        [
            29, 23, 27, 34, 10, 7, 32, 8, 15, 20, 14, 18, 19, 3, 4, 39, 24, 9, 30, 11, 21, 33, 25, 13, 5, 6,
            16, 1, 17, 0, 2, 38, 22, 31, 26, 12, 28, 35, 37, 36, 15, 20, 14, 18, 19, 3, 4, 39
        ],
        "{ADVICE}"
    );
    assert_eq!(
        epoch(&order, 1),
        [
            28, 9, 21, 30, 23, 22, 32, 26, 20, 2, 16, 4, 17, 14, 5, 39, 13, 27, 31, 11, 24, 33, 12, 7, 18, 0,
            19, 15, 6, 3, 1, 38, 8, 34, 25, 10, 29, 35, 36, 37, 20, 2, 16, 4, 17, 14, 5, 39
        ],
        "{ADVICE}"
    );
}

#[test]
fn opportunistic_of_a_large_dataset() {
    let order = order(OrderKind::Opportunistic { window: 1000 }, LastBatch::Drop, 1_281_167, 8, 4, None);
    let order = order.with_residents(shares(1_281_167), |unit| unit % 3 != 0);
    assert_eq!(
        batch(&order, 0, 0, 0),
        [533050, 1198309, 762197, 1262297, 65054, 82977, 1019106, 1232781],
        "{ADVICE}"
    );
    assert_eq!(
        batch(&order, 89, 40_035, 3),
        [584865, 719172, 160032, 556720, 118356, 896879, 1165179, 1076550],
        "{ADVICE}"
    );
}

#[test]
fn opportunistic_with_windows_that_slide() {
    // Units of 40 samples: sections of 2 units, drawn from in 3 turns.
    let units: Vec<ShareUnit> =
        (0..2000).step_by(40).map(|first| ShareUnit { first_sample: SampleId(first), bytes: 40 }).collect();
    let nodes = [vec![Rank(0), Rank(2)], vec![Rank(1), Rank(3)]];
    let order = order(OrderKind::Opportunistic { window: 6 }, LastBatch::Partial, 2000, 8, 4, None)
        .with_residents(Arc::new(NodeShares::new(2000, &units, &nodes, 3)), |unit| unit % 4 == 0);
    assert_eq!(
        [batch(&order, 1, 0, 0), batch(&order, 1, 30, 1), batch(&order, 1, 61, 3)],
        [
            [1297, 111, 296, 92, 100, 411, 1302, 102],
            [1626, 1168, 477, 1478, 1094, 1981, 185, 1178],
            [741, 729, 667, 1900, 1763, 1913, 523, 1448]
        ],
        "{ADVICE}"
    );
}

#[test]
fn group_of_a_small_dataset() {
    let kind = OrderKind::Group { samples: 4, window: 2 };
    let order = order(kind, LastBatch::Fill, 30, 4, 2, Some(4));
    assert_eq!(
        epoch(&order, 0),
        [
            20, 23, 12, 25, 15, 29, 16, 17, 2, 21, 26, 3, 28, 4, 8, 9, 1, 22, 27, 24, 6, 5, 18, 19, 0, 20,
            13, 14, 7, 15, 11, 10
        ],
        "{ADVICE}"
    );
    assert_eq!(
        epoch(&order, 1),
        [
            16, 2, 15, 12, 24, 28, 5, 4, 17, 18, 8, 19, 11, 29, 23, 7, 3, 0, 14, 13, 27, 25, 21, 20, 1, 16,
            10, 9, 26, 24, 22, 6
        ],
        "{ADVICE}"
    );
}

#[test]
fn group_of_a_large_dataset() {
    let kind = OrderKind::Group { samples: 64, window: 4 };
    let order = order(kind, LastBatch::Partial, 1_281_167, 16, 4, None);
    assert_eq!(order.lanes(), 8, "{ADVICE}");
    assert_eq!(
        batch(&order, 0, 0, 0),
        [
            109381, 109397, 651314, 109420, 109410, 109394, 22532, 22542, 797012, 27127, 27097, 667921,
            27128, 27118, 667912, 667926
        ],
        "{ADVICE}"
    );
    assert_eq!(
        batch(&order, 7, 12_345, 2),
        [
            1044118, 1044149, 1044124, 455146, 895098, 1044130, 895095, 895061, 967331, 696090, 654, 696105,
            967323, 967305, 480154, 669
        ],
        "{ADVICE}"
    );
    assert_eq!(batch(&order, 7, 20_018, 3), [959951, 959960, 1199031, 1199019], "{ADVICE}");
}

#[test]
fn group_with_windows_and_groups_beyond_the_table() {
    let kind = OrderKind::Group { samples: 3, window: 5000 };
    let order = order(kind, LastBatch::Fill, 1_000_000, 8, 1, Some(2));
    assert_eq!(
        batch(&order, 0, 0, 0),
        [283287, 489858, 351197, 799420, 879334, 389768, 189721, 424433],
        "{ADVICE}"
    );
    assert_eq!(
        batch(&order, 3, 77_777, 0),
        [65941, 893653, 893654, 684375, 584860, 832614, 634741, 621471],
        "{ADVICE}"
    );
}

#[test]
fn a_state_is_kept_in_these_words() {
    let kind = OrderKind::Group { samples: 64, window: 4 };
    let state = OrderState::new(order(kind, LastBatch::Fill, 1000, 16, 4, None), "f1".into());
    let written = |state: &OrderState| {
        let values = state.at(3, 5).into_iter();
        values.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        written(&state),
        "version=3 kind='group' last_batch='fill' seed=42 epoch=3 step=5 global_batch=64 ranks=4 lanes=8 group_samples=64 \
         group_window=4 fingerprint='f1'",
        "{ADVICE}"
    );
    let local = order(OrderKind::LocalShuffle { steps: 2 }, LastBatch::Fill, 1000, 16, 4, None);
    assert_eq!(
        written(&OrderState::new(local.on_nodes(shares(1000)), "f1".into())),
        "version=3 kind='local-shuffle' last_batch='fill' seed=42 epoch=3 step=5 global_batch=64 ranks=4 lanes=64 \
         group_samples=None group_window=None fingerprint='f1' pool_steps=2 node_shares='3c488bdb6e5fc801'",
        "{ADVICE}"
    );
    let streamed = order(OrderKind::Opportunistic { window: 6 }, LastBatch::Fill, 1000, 16, 4, None);
    let streamed = streamed.with_residents(shares(1000), |unit| unit % 2 == 0);
    assert_eq!(
        written(&OrderState::new(streamed, "f1".into())),
        "version=3 kind='opportunistic' last_batch='fill' seed=42 epoch=3 step=5 global_batch=64 ranks=4 lanes=64 \
         group_samples=None group_window=None fingerprint='f1' stream_window=6 streamed_units=71 \
         node_residents='e00a2929549c473b'",
        "{ADVICE}"
    );
    let names = [
        OrderKind::Sequential,
        OrderKind::Contiguous,
        OrderKind::Shuffle,
        OrderKind::LocalShuffle { steps: 1 },
        OrderKind::ALL_GIVEN,
    ]
    .map(|kind| kind.name());
    assert_eq!(names, ["sequential", "contiguous", "shuffle", "local-shuffle", "given"], "{ADVICE}");
    let names = [LastBatch::Fill, LastBatch::Drop, LastBatch::Partial, LastBatch::Carry].map(LastBatch::name);
    assert_eq!(names, ["fill", "drop", "partial", "carry"], "{ADVICE}");
}

#[test]
fn a_state_of_this_version_goes_on_where_it_stands() {
    // As state_dict() returned it in version 3, on 4 ranks; here on 2.
    let kept: [(&str, StateValue); 12] = [
        ("version", 3.into()),
        ("kind", "group".into()),
        ("last_batch", "fill".into()),
        ("seed", 42.into()),
        ("epoch", 3.into()),
        ("step", 5.into()),
        ("global_batch", 64.into()),
        ("ranks", 4.into()),
        ("lanes", 8.into()),
        ("group_samples", 64.into()),
        ("group_window", 4.into()),
        ("fingerprint", "f1".into()),
    ];
    let value = |key: &str| kept.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
    let kind = OrderKind::Group { samples: 64, window: 4 };
    let state = OrderState::new(order(kind, LastBatch::Fill, 1000, 32, 2, None), "f1".into());
    let resumed = state.resume(value).expect(ADVICE);
    assert_eq!(resumed, Resumption { epoch: 3, step: 5, kind, lanes: 8 }, "{ADVICE}");
}

#[test]
fn mixtures() {
    let source = |name: &str, samples, weight| MixtureSource { name: name.into(), samples, weight };
    let sources = vec![source("web", 20, 7), source("code", 9, 2), source("books", 5, 1)];
    let mixture = Mixture::new(MixtureSpec { sources, stop: Stop::All }).unwrap();
    let spec = OrderSpec {
        kind: OrderKind::Shuffle,
        last_batch: LastBatch::Drop,
        seed: 42,
        samples: 0,
        batch: 4,
        ranks: 2,
        lanes: None,
    };
    let shuffle = Order::mixed(spec, mixture.clone()).unwrap();
    assert_eq!(
        epoch(&shuffle, 0)[..24],
        [4, 23, 5, 0, 29, 16, 3, 17, 25, 15, 8, 26, 18, 2, 30, 11, 12, 19, 20, 1, 9, 27, 14, 10],
        "{ADVICE}"
    );
    let group = OrderSpec { kind: OrderKind::Group { samples: 3, window: 2 }, lanes: Some(4), ..spec };
    let group = Order::mixed(group, mixture).unwrap();
    assert_eq!(
        epoch(&group, 1)[..24],
        [29, 9, 6, 26, 16, 17, 19, 18, 3, 20, 5, 7, 27, 12, 23, 1, 11, 10, 22, 15, 14, 31, 0, 2],
        "{ADVICE}"
    );
}
