//! What cannot be is refused with the numbers that contradict each other, and those that would
//! work.

use forebay_plan::{LastBatch, Order, OrderError, OrderKind, OrderSpec};

const GROUP: OrderKind = OrderKind::Group { samples: 16, window: 4 };

fn spec(kind: OrderKind, last: LastBatch) -> OrderSpec {
    OrderSpec { kind, last_batch: last, seed: 7, samples: 1000, batch: 12, ranks: 4, lanes: None }
}

/// Message and hint.
fn refused(spec: OrderSpec) -> (String, String) {
    words(&Order::new(spec).unwrap_err())
}

fn words(error: &OrderError) -> (String, String) {
    (error.to_string(), error.hint().unwrap_or_default().to_owned())
}

#[test]
fn a_batch_larger_than_the_dataset() {
    for kind in
        [OrderKind::Sequential, OrderKind::Contiguous, OrderKind::Shuffle, GROUP, OrderKind::ALL_GIVEN]
    {
        for last in [LastBatch::Fill, LastBatch::Drop] {
            let (message, hint) = refused(OrderSpec { samples: 47, ..spec(kind, last) });
            assert_eq!(
                message,
                format!(
                    "order {}: batch larger than the dataset: 4 rank(s) with batches of 12 take 48 samples per step, the dataset \
                     has 47, and last_batch=\"{}\" needs at least one whole step",
                    kind.name(),
                    last.name()
                )
            );
            assert_eq!(hint, "use a smaller batch, or last_batch=\"partial\"");
        }
        let short = Order::new(OrderSpec { samples: 47, ..spec(kind, LastBatch::Partial) }).unwrap();
        assert_eq!(short.steps_per_epoch(), 1);
        assert_eq!(
            Order::new(OrderSpec { samples: 48, ..spec(kind, LastBatch::Drop) }).unwrap().steps_per_epoch(),
            1
        );
    }
}

#[test]
fn an_empty_dataset() {
    for last in [LastBatch::Fill, LastBatch::Drop, LastBatch::Partial] {
        let (message, hint) = refused(OrderSpec { samples: 0, ..spec(OrderKind::Shuffle, last) });
        assert_eq!(message, "order shuffle: the dataset has no samples");
        assert!(hint.contains("forebay inspect"));
    }
}

#[test]
fn fewer_samples_than_ranks() {
    for kind in
        [OrderKind::Sequential, OrderKind::Contiguous, OrderKind::Shuffle, GROUP, OrderKind::ALL_GIVEN]
    {
        let (message, hint) = refused(OrderSpec { samples: 3, ..spec(kind, LastBatch::Partial) });
        assert_eq!(
            message,
            format!(
                "order {}: fewer samples than ranks: 4 ranks, the dataset has 3, and each rank needs one at least in a \
                 step",
                kind.name()
            )
        );
        assert!(hint.contains("fewer ranks"));
    }
}

#[test]
fn carry_with_an_order_that_is_no_circle() {
    for kind in [OrderKind::Contiguous, OrderKind::Shuffle, GROUP, OrderKind::ALL_GIVEN] {
        let (message, hint) = refused(spec(kind, LastBatch::Carry));
        assert!(message.starts_with(&format!("order {}: last_batch=\"carry\"", kind.name())), "{message}");
        assert!(message.ends_with("which only order sequential can do"), "{message}");
        assert!(hint.contains("order=\"sequential\""));
    }
}

#[test]
fn numbers_that_cannot_be() {
    for (change, expected) in [
        (
            OrderSpec { batch: 0, ..spec(GROUP, LastBatch::Fill) },
            "order group: the batch is 0, expected 1 to 4294967295",
        ),
        (
            OrderSpec { ranks: 0, ..spec(GROUP, LastBatch::Fill) },
            "order group: the number of ranks is 0, expected 1 to 4294967295",
        ),
        (
            spec(OrderKind::Group { samples: 0, window: 4 }, LastBatch::Fill),
            "order group: samples, the size of a group, is 0, expected at least 1",
        ),
        (
            spec(OrderKind::Group { samples: 4, window: 0 }, LastBatch::Fill),
            "order group: window, the groups of a window, is 0, expected at least 1 and at most 2^62 samples in all",
        ),
        (
            spec(OrderKind::Group { samples: 1 << 40, window: 1 << 40 }, LastBatch::Fill),
            "order group: window, the groups of a window, is 1099511627776, expected at least 1 and at most 2^62 samples in all",
        ),
        (
            OrderSpec { samples: u64::MAX, ..spec(OrderKind::Shuffle, LastBatch::Fill) },
            "order shuffle: the number of samples is 18446744073709551615, expected at most 2^62",
        ),
    ] {
        assert_eq!(refused(change).0, expected);
    }
}

#[test]
fn lanes_that_do_not_fit_name_those_that_would() {
    let (message, hint) = refused(OrderSpec { lanes: Some(5), ..spec(GROUP, LastBatch::Fill) });
    assert_eq!(
        message,
        "order group: lanes=5 does not fit 4 rank(s) and a global batch of 48: lanes must be a multiple of the ranks and divide \
         the global batch; 4, 8, 12, 16, 24, 48 would work"
    );
    assert_eq!(hint, "leave lanes out to have them chosen, or use one of these numbers");
    for lanes in [0, 2, 96] {
        assert!(
            refused(OrderSpec { lanes: Some(lanes), ..spec(GROUP, LastBatch::Fill) })
                .0
                .contains("4, 8, 12, 16, 24, 48 would")
        );
    }
    for lanes in [4, 8, 12, 16, 24, 48] {
        assert_eq!(
            Order::new(OrderSpec { lanes: Some(lanes), ..spec(GROUP, LastBatch::Fill) }).unwrap().lanes(),
            lanes
        );
    }
    let (message, _) =
        refused(OrderSpec { batch: 720, lanes: Some(1), samples: 10_000, ..spec(GROUP, LastBatch::Fill) });
    assert!(
        message.ends_with("4, 8, 12, 16, 20, 24, 32, 36, 40, 48, 60, 64, ..., 2880 would work"),
        "{message}"
    );
}

#[test]
fn lanes_are_for_groups() {
    let (message, hint) = refused(OrderSpec { lanes: Some(8), ..spec(OrderKind::Shuffle, LastBatch::Fill) });
    assert_eq!(message, "order shuffle: lanes=8, but only order group has lanes to choose");
    assert!(hint.contains("order=\"group\""));
}

#[test]
fn lanes_are_chosen_so_that_other_numbers_of_ranks_can_go_on() {
    let lanes = |batch, ranks| {
        let order =
            Order::new(OrderSpec { batch, ranks, samples: 100_000, ..spec(GROUP, LastBatch::Fill) }).unwrap();
        (order.lanes(), order.allowed_ranks())
    };
    assert_eq!(lanes(256, 1), (8, vec![1, 2, 4, 8]));
    assert_eq!(lanes(64, 4), (8, vec![1, 2, 4, 8]));
    assert_eq!(lanes(64, 6), (12, vec![1, 2, 3, 4, 6, 12]));
    assert_eq!(lanes(64, 16), (16, vec![1, 2, 4, 8, 16]));
    assert_eq!(lanes(6, 1), (6, vec![1, 2, 3, 6]), "no divisor of 6 reaches 8");
    assert_eq!(lanes(7, 2), (14, vec![1, 2, 7, 14]));
    assert_eq!(lanes(1, 1), (1, vec![1]));
    let order = |kind| Order::new(spec(kind, LastBatch::Fill)).unwrap();
    assert_eq!(order(OrderKind::Shuffle).allowed_ranks(), [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]);
    assert_eq!(order(OrderKind::Sequential).lanes(), 48);
    assert_eq!(order(OrderKind::Contiguous).allowed_ranks(), [4]);
}

#[test]
fn what_an_order_chose_is_accepted_when_it_is_made_again() {
    for kind in
        [OrderKind::Sequential, OrderKind::Contiguous, OrderKind::Shuffle, GROUP, OrderKind::ALL_GIVEN]
    {
        let order = Order::new(spec(kind, LastBatch::Fill)).unwrap();
        let again = Order::new(OrderSpec { lanes: Some(order.lanes()), ..*order.spec() }).unwrap();
        assert_eq!(again.lanes(), order.lanes());
    }
}

#[test]
fn given_ids_are_one_for_each_sample() {
    let order = Order::new(OrderSpec { samples: 50, ..spec(OrderKind::ALL_GIVEN, LastBatch::Fill) }).unwrap();
    let mut ids: Vec<i64> = (0..50).rev().collect();
    assert_eq!(order.check_given(3, &ids).unwrap(), (0..50).rev().collect::<Vec<u64>>());
    ids[49] = 49;
    let (message, _) = words(&order.check_given(3, &ids).unwrap_err());
    assert_eq!(
        message,
        "order given, epoch 3: sample id 49 at position 49, expected one that was not there before"
    );
    ids[49] = -1;
    assert!(words(&order.check_given(3, &ids).unwrap_err()).0.contains("sample id -1 at position 49"));
    ids[49] = 50;
    let (message, hint) = words(&order.check_given(3, &ids).unwrap_err());
    assert_eq!(message, "order given, epoch 3: sample id 50 at position 49, expected 0 to 49");
    assert!(hint.contains("len(dataset) - 1"));
    let (message, _) = words(&order.check_given(3, &ids[..9]).unwrap_err());
    assert_eq!(
        message,
        "order given, epoch 3: 9 sample ids, expected 50, one for each sample of the dataset"
    );
}

#[test]
fn given_ids_may_be_declared_to_be_some_or_to_repeat() {
    let given = |samples, repeats| {
        let kind = OrderKind::Given { among: Some(50), repeats };
        Order::new(OrderSpec { samples, ..spec(kind, LastBatch::Fill) })
    };
    let some = given(48, false).unwrap();
    assert!(some.check_given(0, &(2..50).collect::<Vec<i64>>()).is_ok());
    let (message, hint) = words(&some.check_given(0, &[0; 48]).unwrap_err());
    assert!(message.contains("sample id 0 at position 1") && hint.contains("repeats=True"));
    let (message, _) = words(&some.check_given(0, &[0; 47]).unwrap_err());
    assert_eq!(message, "order given, epoch 0: 47 sample ids, expected 48");
    let (message, _) = words(&given(51, false).unwrap_err());
    assert!(message.contains("at most the samples of the dataset"));
    let more = given(96, true).unwrap();
    assert!(more.check_given(0, &[49; 96]).is_ok());
    assert!(words(&more.check_given(0, &[50; 96]).unwrap_err()).0.contains("expected 0 to 49"));
}

#[test]
fn numbers_at_the_edge_of_64_bits_do_not_overflow() {
    let order = Order::new(OrderSpec {
        kind: OrderKind::Group { samples: 1 << 31, window: 1 << 31 },
        last_batch: LastBatch::Fill,
        seed: u64::MAX,
        samples: 1 << 62,
        batch: u64::from(u32::MAX),
        ranks: 1,
        lanes: Some(u64::from(u32::MAX)),
    });
    let order = order.unwrap();
    assert!(order.steps_per_epoch() > 1 << 29);
    assert!(order.min_staging_bytes(1.0, 1) >= 1 << 62);
    assert!(order.quality().order_entropy.unwrap() <= 1.0);
    let largest = OrderSpec {
        samples: 1 << 62,
        batch: 4,
        ranks: u64::from(u32::MAX),
        ..spec(OrderKind::Shuffle, LastBatch::Fill)
    };
    let order = Order::new(largest).unwrap();
    let mut out = Vec::new();
    order.batch(u64::MAX, order.steps_per_epoch() - 1, forebay_types::Rank(u32::MAX - 1), None, &mut out);
    assert!(out.len() == 4 && out.iter().all(|sample| sample.0 < 1 << 62));
}
