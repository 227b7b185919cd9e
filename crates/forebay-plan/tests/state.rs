//! States of loaders: what does not fit is refused, with what would.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_plan::{
    LastBatch, NodeShares, Order, OrderKind, OrderSpec, OrderState, Resumption, ShareUnit, StateError,
    StateValue,
};
use forebay_types::{Rank, SampleId};

const GROUP: OrderKind = OrderKind::Group { samples: 16, window: 4 };

/// Of 1000 samples, in global batches of 48.
fn loader(kind: OrderKind, ranks: u64) -> OrderState {
    let lanes = (kind == GROUP && 8 % ranks == 0).then_some(8);
    let spec = OrderSpec {
        kind,
        last_batch: LastBatch::Fill,
        seed: 7,
        samples: 1000,
        batch: 48 / ranks,
        ranks,
        lanes,
    };
    OrderState::new(Order::new(spec).unwrap(), "f1".into())
}

/// An order of the ranks of these nodes, and what each of the nodes holds.
fn on_nodes(kind: OrderKind, nodes: &[&[u32]]) -> (Order, Arc<NodeShares>) {
    let ranks = nodes.iter().map(|ranks| ranks.len() as u64).sum();
    let spec = OrderSpec {
        kind,
        last_batch: LastBatch::Fill,
        seed: 7,
        samples: 1000,
        batch: 48 / ranks,
        ranks,
        lanes: None,
    };
    let units: Vec<ShareUnit> =
        (0..100).map(|unit| ShareUnit { first_sample: SampleId(10 * unit), bytes: 10 }).collect();
    let nodes: Vec<Vec<Rank>> = nodes.iter().map(|ranks| ranks.iter().copied().map(Rank).collect()).collect();
    (Order::new(spec).unwrap(), Arc::new(NodeShares::new(1000, &units, &nodes, 1)))
}

/// The same in `local-shuffle`, with these ranks on each node.
fn local_loader(steps: u64, nodes: &[&[u32]]) -> OrderState {
    let (order, shares) = on_nodes(OrderKind::LocalShuffle { steps }, nodes);
    let order = if nodes.len() == 1 { order } else { order.on_nodes(shares) };
    OrderState::new(order, "f1".into())
}

/// The same in `opportunistic`, where every `streamed`-th unit is streamed.
fn opportunistic_loader(window: u64, nodes: &[&[u32]], streamed: usize) -> OrderState {
    let (order, shares) = on_nodes(OrderKind::Opportunistic { window }, nodes);
    let order = order.with_residents(shares, |unit| unit % streamed != 0);
    OrderState::new(order, "f1".into())
}

/// A state with some values changed; `None` takes a key away.
fn changed(state: &OrderState, changes: &[(&str, Option<StateValue>)]) -> BTreeMap<String, StateValue> {
    let mut values: BTreeMap<_, _> =
        state.at(2, 5).into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    for (key, value) in changes {
        match value {
            Some(value) => values.insert((*key).to_owned(), value.clone()),
            None => values.remove(*key),
        };
    }
    values
}

fn resume(
    loader: &OrderState,
    state: &OrderState,
    changes: &[(&str, Option<StateValue>)],
) -> Result<Resumption, StateError> {
    let values = changed(state, changes);
    loader.resume(|key| values.get(key).cloned())
}

#[test]
fn a_state_goes_on_where_it_was_written() {
    for kind in
        [OrderKind::Sequential, OrderKind::Contiguous, OrderKind::Shuffle, GROUP, OrderKind::ALL_GIVEN]
    {
        let state = loader(kind, 4);
        let resumed = resume(&state, &state, &[]).unwrap();
        assert_eq!((resumed.epoch, resumed.step, resumed.kind), (2, 5, kind));
        assert!(state.is_order_of(&resumed));
    }
}

#[test]
fn a_stream_goes_on_on_each_number_of_ranks_that_divides_its_lanes() {
    let state = loader(GROUP, 4);
    for ranks in [1, 2, 4, 8] {
        resume(&loader(GROUP, ranks), &state, &[]).unwrap();
    }
    let error = resume(&loader(GROUP, 3), &state, &[("lanes", Some(16.into()))]).unwrap_err();
    assert!(matches!(error, StateError::Ranks { ranks: 3, lanes: 16, .. }));
    assert!(error.hint().ends_with("1, 2, 4, 8, 16"));
    let error =
        resume(&loader(OrderKind::Contiguous, 2), &loader(OrderKind::Contiguous, 4), &[]).unwrap_err();
    assert!(matches!(error, StateError::Regions { ranks: 2, lanes: 4, .. }));
    let changes = [("global_batch", Some(96.into())), ("lanes", Some(8.into()))];
    let error = resume(&state, &state, &changes).unwrap_err();
    assert!(matches!(error, StateError::GlobalBatch { found: 96, expected: 48, .. }));
    assert!(error.hint().contains("batch_size=24"));
}

#[test]
fn local_shuffle_of_single_steps_goes_on_on_any_nodes() {
    let state = local_loader(1, &[&[0, 1], &[2, 3]]);
    for nodes in [&[&[0_u32, 1][..], &[2, 3]][..], &[&[0], &[1], &[2]], &[&[0, 1, 2, 3]]] {
        let resumed = resume(&local_loader(1, nodes), &state, &[]).unwrap();
        assert_eq!((resumed.step, resumed.kind), (5, OrderKind::LocalShuffle { steps: 1 }));
    }
    let error = resume(&local_loader(4, &[&[0, 1], &[2, 3]]), &state, &[]).unwrap_err();
    assert!(matches!(error, StateError::Differs { key: "pool_steps", .. }), "{error}");
}

#[test]
fn local_shuffle_goes_on_on_other_nodes_where_a_pool_begins() {
    let state = local_loader(4, &[&[0, 1], &[2, 3]]);
    resume(&local_loader(4, &[&[0, 1], &[2, 3]]), &state, &[]).unwrap();
    for nodes in [&[&[0_u32], &[1, 2, 3][..]][..], &[&[0, 1, 2, 3]]] {
        let error = resume(&local_loader(4, nodes), &state, &[]).unwrap_err();
        assert!(matches!(error, StateError::Pool { step: 5, .. }), "{error}");
        assert!(error.hint().contains("step 4 or 8"), "{}", error.hint());
        for step in [0_u64, 4, 20, 21] {
            resume(&local_loader(4, nodes), &state, &[("step", Some(step.into()))]).unwrap();
        }
    }
}

#[test]
fn opportunistic_goes_on_where_the_nodes_keep_the_same() {
    let nodes: &[&[u32]] = &[&[0, 1], &[2, 3]];
    let state = opportunistic_loader(4, nodes, 3);
    // The window of the state is taken over.
    for window in [4, 9] {
        let loader = opportunistic_loader(window, nodes, 3);
        let resumed = resume(&loader, &state, &[]).unwrap();
        assert_eq!((resumed.step, resumed.kind), (5, OrderKind::Opportunistic { window: 4 }));
        assert_eq!(loader.is_order_of(&resumed), window == 4);
    }
    let others: [(&[&[u32]], usize); 4] =
        [(nodes, 2), (&[&[0], &[1, 2, 3]], 3), (&[&[0, 1, 2, 3]], 3), (&[&[0, 2], &[1, 3]], 3)];
    for (nodes, streamed) in others {
        let other = opportunistic_loader(9, nodes, streamed);
        let error = resume(&other, &state, &[]).unwrap_err();
        assert!(matches!(error, StateError::Residents { step: 5, .. }), "{error}");
        assert!(error.to_string().contains("found 34 streamed units, residents '"), "{error}");
        assert!(error.hint().contains("step 0 or 21,"), "{}", error.hint());
        for step in [0_u64, 21] {
            let resumed = resume(&other, &state, &[("step", Some(step.into()))]).unwrap();
            assert_eq!(
                resumed.kind,
                OrderKind::Opportunistic { window: 9 },
                "another epoch has its own window"
            );
        }
    }
    for value in [StateValue::None, 0.into(), StateValue::Text("4".into()), StateValue::Other("4.0".into())] {
        let error = resume(&state, &state, &[("stream_window", Some(value))]).unwrap_err();
        assert!(matches!(error, StateError::Damaged { key: "stream_window", .. }), "{error}");
    }
    for key in ["stream_window", "streamed_units", "node_residents"] {
        let error = resume(&state, &state, &[(key, None)]).unwrap_err();
        assert!(matches!(&error, StateError::Missing { keys } if keys == &[key]), "{error}");
    }
}

#[test]
fn sizes_of_groups_and_lanes_are_those_of_the_state() {
    let state = loader(GROUP, 4);
    let changes = [("group_samples", Some(5.into())), ("lanes", Some(16.into()))];
    let resumed = resume(&state, &state, &changes).unwrap();
    assert_eq!((resumed.kind, resumed.lanes), (OrderKind::Group { samples: 5, window: 4 }, 16));
    assert!(!state.is_order_of(&resumed));
}

#[test]
fn another_stream_names_the_difference() {
    let state = loader(GROUP, 4);
    for (key, other) in [
        ("version", StateValue::from(1)),
        ("kind", "shuffle".into()),
        ("last_batch", "drop".into()),
        ("seed", 8.into()),
        ("fingerprint", "f2".into()),
    ] {
        let error = resume(&state, &state, &[(key, Some(other.clone()))]).unwrap_err();
        assert!(
            matches!(&error, StateError::Differs { key: named, found, .. } if (*named, found) == (key, &other)),
            "{error}"
        );
    }
}

#[test]
fn a_state_of_another_version_is_refused_as_such_whatever_its_keys_are() {
    let state = loader(GROUP, 4);
    let changes = [("version", Some(1.into())), ("lanes", None), ("kind", Some(StateValue::None))];
    let error = resume(&state, &state, &changes).unwrap_err();
    assert!(matches!(error, StateError::Differs { key: "version", .. }));
}

#[test]
fn damaged_values_of_every_type_are_refused_with_the_key() {
    let state = loader(GROUP, 4);
    let broken = [
        StateValue::None,
        StateValue::Text("5".into()),
        StateValue::Other("-1".into()),
        StateValue::Other("True".into()),
        StateValue::Other("18446744073709551616".into()),
        StateValue::Integer(u64::MAX),
    ];
    for key in ["epoch", "step", "global_batch", "lanes", "group_samples", "group_window"] {
        for value in &broken {
            let error = resume(&state, &state, &[(key, Some(value.clone()))]).unwrap_err();
            assert!(
                matches!(&error, StateError::Damaged { key: named, found, .. } if (*named, found) == (key, value)),
                "{key} = {value:?}: {error}"
            );
        }
    }
    for key in ["version", "kind", "last_batch", "seed", "fingerprint"] {
        for value in &broken {
            let error = resume(&state, &state, &[(key, Some(value.clone()))]).unwrap_err();
            assert!(matches!(&error, StateError::Differs { key: named, .. } if *named == key), "{error}");
        }
        let error = resume(&state, &state, &[(key, None), ("step", None)]).unwrap_err();
        assert!(matches!(&error, StateError::Missing { keys } if keys.len() == 2 && keys.contains(&key)));
    }
    for lanes in [0, 7] {
        let error = resume(&state, &state, &[("lanes", Some(lanes.into()))]).unwrap_err();
        assert!(matches!(error, StateError::Damaged { key: "lanes", .. }), "{error}");
    }
    let shuffle = loader(OrderKind::Shuffle, 4);
    let error = resume(&shuffle, &shuffle, &[("group_window", Some(4.into()))]).unwrap_err();
    assert!(matches!(error, StateError::Differs { key: "group_window", .. }), "{error}");
}

#[test]
fn the_state_behind_a_batch_comes_for_positions_of_batches_only() {
    let state = loader(GROUP, 4);
    let steps = 21;
    assert_eq!(state.behind(3.into(), (steps - 1).into()).unwrap(), state.at(3, steps));
    for (epoch, step) in [
        (0.into(), steps.into()),
        (StateValue::Other("-1".into()), 0.into()),
        (0.into(), StateValue::Other("1.5".into())),
    ] {
        let error = state.behind(epoch, step).unwrap_err();
        assert!(matches!(error, StateError::Position { highest: 20, .. }));
    }
}
