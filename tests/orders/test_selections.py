"""Selections: a dataset of some samples of the files, read as any other one."""

from __future__ import annotations

import functools
import itertools
import pickle

import numpy as np
import pytest

import forebay
import forebay_lab
from forebay._selection import split_ids
from support.ranks import choice
from support.ranks.pool import Raised
from support.tiering import FORMATS, MEMORY, SAMPLES, opening

SCATTERED = np.random.default_rng(3).permutation(SAMPLES)[:90]


def plain(dataset):
    """The samples as bytes, one after the other."""
    if isinstance(dataset[0], bytes):
        return list(dataset)
    return [b"".join(np.asarray(one[name]).tobytes() for name in sorted(one)) for one in dataset]


@pytest.fixture(scope="module")
def opened(tier_data):
    """Give the dataset of a format, and its samples."""

    @functools.cache
    def of(kind):
        dataset = forebay.open(tier_data.formats[kind], **opening(kind))
        return dataset, plain(dataset)

    return of


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "ids", [[7], np.arange(0, SAMPLES, 3), SCATTERED, [-1, 0]], ids=["one", "third", "any", "ends"]
)
def test_a_selection_has_the_samples_that_were_chosen(opened, kind, ids):
    dataset, samples = opened(kind)
    chosen = dataset.select(ids)
    assert len(chosen) == len(ids)
    assert plain(chosen) == [samples[number] for number in ids]
    assert chosen.ids.tolist() == [number % SAMPLES for number in ids]
    assert chosen.extents(0) == dataset.extents(ids[0])
    assert chosen.fingerprint != dataset.fingerprint
    again = pickle.loads(pickle.dumps(chosen))
    assert (plain(again), again.fingerprint) == (plain(chosen), chosen.fingerprint)


def test_a_selection_of_a_selection_is_one_of_the_files(opened):
    dataset, samples = opened("lmdb")
    twice = dataset.select(SCATTERED).select(np.arange(89, 0, -2))
    assert twice.ids.tolist() == SCATTERED[89:0:-2].tolist()
    assert plain(twice) == [samples[number] for number in SCATTERED[89:0:-2]]
    assert twice.fingerprint == dataset.select(SCATTERED[89:0:-2]).fingerprint
    assert pickle.loads(pickle.dumps(twice)).fingerprint == twice.fingerprint


def test_a_mask_selects_where_it_is_true(opened):
    dataset, samples = opened("npy")
    mask = np.arange(SAMPLES) % 5 == 2
    assert plain(dataset.select(mask)) == samples[2::5]


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("lmdb", "group"),
        ("hdf5", "shuffle"),
        ("tar", "contiguous"),
        ("folder", "shuffle"),
        ("recordio", "sequential"),
    ],
)
def test_ranks_get_each_selected_sample_once(pool, opened, kind, order):
    dataset, _ = opened(kind)
    chosen = dataset.select(SCATTERED)
    options = {"batch_size": 7, "order": order, "node_memory": MEMORY, "last_batch": "partial"}
    one = pool.run(1, choice.deliver, dataset=chosen, options=options | {"batch_size": 14})[0][0]
    assert sorted(itertools.chain(*(ids for ids, _ in one))) == sorted([*range(90), *range(90)])
    two = [steps for steps, _ in pool.run(2, choice.deliver, dataset=chosen, options=options)]
    if order in ("sequential", "shuffle"):
        assert [a[0] + b[0] for a, b in zip(*two, strict=True)] == [ids for ids, _ in one]
    for ids, digest in itertools.chain(*two):
        if ids:
            one_by_one = forebay.Loader(chosen.select(ids), len(ids), order="sequential", name="again")
            with one_by_one as loader:
                assert [choice.step(batch)[1] for batch in loader] == [digest]


@pytest.mark.parametrize(
    ("level", "order"),
    [
        ({"strategy": "pread"}, "local-shuffle"),
        ({"strategy": "mmap"}, "shuffle"),
        ({"store": "auto"}, "local-shuffle"),
        ({"store": "1MiB"}, "shuffle"),
    ],
)
def test_nodes_and_stores_deliver_a_selection_as_one_process_does(pool, opened, level, order):
    dataset, _ = opened("lmdb")
    chosen = dataset.select(SCATTERED)
    options = {"batch_size": 10, "order": "shuffle", "node_memory": MEMORY}
    one = pool.run(1, choice.deliver, dataset=chosen, options=options | {"batch_size": 20})[0][0]
    options |= {**level, "order": order}
    ranks = pool.begin(2, choice.deliver, nodes=[0, 1], over="tcp", dataset=chosen, options=options)
    two = pool.outcomes(ranks)
    assert not [found.trace for found in two if isinstance(found, Raised)]
    steps = [a[0] + b[0] for a, b in zip(two[0][0], two[1][0], strict=True)]
    assert [sorted(ids) for ids in steps] == [sorted(ids) for ids, _ in one]


def test_a_state_is_of_its_selection(pool, opened):
    dataset, _ = opened("tfrecord")
    options = {"batch_size": 8, "order": "shuffle", "node_memory": MEMORY}
    run = functools.partial(pool.run, 1, choice.deliver, options=options)
    whole = run(dataset=dataset.select(SCATTERED))[0][0]
    first, state = run(dataset=dataset.select(SCATTERED), stop=5)[0]
    rest = run(dataset=dataset.select(SCATTERED), state=state)[0][0]
    assert first + rest == whole
    with (
        forebay.Loader(dataset.select(SCATTERED[1:]), **options) as loader,
        pytest.raises(forebay.ForebayError, match="fingerprint"),
    ):
        loader.load_state_dict(state)


def test_ranks_with_other_selections_are_refused(pool, opened):
    dataset, _ = opened("raw")
    options = {"batch_size": 4, "node_memory": MEMORY}
    chosen = [dataset.select(np.arange(50)), dataset.select(np.arange(1, 51))]
    found = pool.outcomes(
        pool.begin(2, choice.deliver, lambda rank: {"dataset": chosen[rank]}, options=options)
    )
    assert all(isinstance(one, Raised) and "dataset" in one.trace for one in found)


def test_a_cursor_takes_no_selection(opened):
    chosen = opened("lmdb")[0].select([3, 4, 5])
    with pytest.raises(forebay.OptionError, match="a selection of the records"):
        forebay.Loader(chosen, 1, order="sequential", strategy=forebay_lab.strategy("lmdb"))


@pytest.mark.parametrize(
    ("ids", "error", "says"),
    [
        ([], forebay.OptionError, "at least one sample"),
        (np.zeros(SAMPLES, bool), forebay.OptionError, "at least one sample"),
        (np.ones(5, bool), forebay.OptionError, f"a mask of {SAMPLES} samples, found one of 5"),
        ([1, 2, 1], forebay.OptionError, "found sample 1 twice"),
        ([0, -SAMPLES], forebay.OptionError, "found sample 0 twice"),
        ([0.0, 1.0], forebay.OptionError, "ids or a mask with one axis, found an array of float64"),
        ([[0, 1]], forebay.OptionError, r"shape \(1, 2\)"),
        ("3", forebay.OptionError, "ids or a mask"),
        ([SAMPLES], IndexError, f"sample {SAMPLES} of a dataset of {SAMPLES} samples"),
        ([-SAMPLES - 1], IndexError, f"sample -{SAMPLES + 1} of"),
        (np.array([2**64 - 1], np.uint64), IndexError, "sample 18446744073709551615"),
    ],
)
def test_wrong_selections_say_what_is_expected(opened, ids, error, says):
    with pytest.raises(error, match=says):
        opened("npy")[0].select(ids)


@pytest.mark.parametrize("seed", range(50))
def test_a_split_shares_out_samples_without_overlap(seed):
    random = np.random.default_rng(seed)
    parts = random.integers(1, 41, random.integers(1, 7)).tolist()
    samples = int(random.integers(sum(parts), 500))
    counted = split_ids(parts, samples, seed)
    assert [len(ids) for ids in counted] == parts
    assert len(np.unique(np.concatenate(counted))) == sum(parts)
    fractions = [part / sum(parts) for part in parts]
    shared = split_ids(fractions, samples, seed)
    assert sorted(np.concatenate(shared).tolist()) == list(range(samples))
    assert all((np.diff(ids) > 0).all() for ids in shared)
    assert all(abs(len(ids) - part * samples) < 1 + 1e-6 for ids, part in zip(shared, fractions, strict=True))


def test_a_split_is_the_same_everywhere_and_depends_on_its_seed(opened):
    dataset, _ = opened("npy")
    train, valid = dataset.split([0.8, 0.2], seed=1)
    assert (len(train), len(valid)) == (162, 41)
    assert not set(train.ids) & set(valid.ids)
    # As Philox gives them: another result would change the datasets of users.
    assert valid.ids[:8].tolist() == [1, 4, 11, 19, 20, 39, 40, 48]
    assert dataset.split([0.8, 0.2], seed=2)[1].ids.tolist() != valid.ids.tolist()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([0.9, 0.2], "a sum of at most 1"),
        ([1.0, -0.1], "fractions above 0"),
        ([200, 4], f"at most {SAMPLES} samples in all, found 204"),
        ([0.001, 0.999], r"part 0 \(0.001\) of 203 samples would have no sample"),
        ([], "fractions or counts"),
        ("90%", "fractions or counts"),
    ],
)
def test_wrong_splits_say_what_is_expected(opened, parts, says):
    with pytest.raises(forebay.OptionError, match=says):
        opened("npy")[0].split(parts)
