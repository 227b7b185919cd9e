"""Orders that users give: a part of the samples, repeats, and draws by weights."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

import forebay
from forebay import Given, Weighted
from support.ranks import choice
from support.ranks.pool import Raised
from support.ranks.tiers import step
from support.tiering import FORMATS, MEMORY, SAMPLES, opening


def curriculum(epoch):
    """More and more of the samples twice, the others not at all."""
    return np.random.default_rng(epoch).permutation(np.tile(np.arange(30 * (epoch + 1)), 4)[:120])


@pytest.fixture(scope="module")
def opened(tier_data):
    return functools.cache(lambda kind: forebay.open(tier_data.formats[kind], **opening(kind)))


@pytest.fixture(scope="module")
def digests(opened):
    """Give the digest of each sample of a format, as a batch of one."""

    @functools.cache
    def of(kind):
        options = {"order": "sequential", "node_memory": MEMORY, "name": "alone"}
        with forebay.Loader(opened(kind), 1, **options) as loader:
            return {ids[0]: digest for ids, digest in map(step, loader)}

    return of


@pytest.mark.parametrize(
    ("kind", "strategy"), [*((kind, "forebay") for kind in FORMATS), ("lmdb", "pread"), ("hdf5", "io_uring")]
)
def test_an_epoch_has_the_ids_that_were_given(opened, digests, kind, strategy):
    order = Given(curriculum, samples=120, repeats=True)
    with forebay.Loader(opened(kind), 8, order=order, node_memory=MEMORY, strategy=strategy) as loader:
        assert len(loader) == 15
        for epoch in range(3):
            found = []
            for batch in loader:
                found += batch.indices.tolist()
                for at, number in enumerate(batch.indices.tolist()):
                    one = forebay.Batch({name: batch[name][at : at + 1] for name in batch})
                    one.indices = batch.indices[at : at + 1]
                    assert step(one)[1] == digests(kind)[number]
            assert found == curriculum(epoch).tolist()


@pytest.mark.parametrize("level", [{"strategy": "pread"}, {"store": "auto"}, {"store": "1MiB"}])
def test_nodes_share_out_what_was_given(pool, opened, level):
    order = Given(curriculum, samples=120, repeats=True)
    options = {"order": order, "node_memory": MEMORY}
    one = pool.run(1, choice.deliver, dataset=opened("lmdb"), options=options | {"batch_size": 12})[0][0]
    options |= {"batch_size": 3, **level}
    where = {"nodes": [0, 0, 1, 1], "over": "tcp"}
    four = pool.outcomes(pool.begin(4, choice.deliver, **where, dataset=opened("lmdb"), options=options))
    assert not [found.trace for found in four if isinstance(found, Raised)]
    steps = zip(*(steps for steps, _ in four), strict=True)
    assert [tuple(itertools.chain(*(ids for ids, _ in parts))) for parts in steps] == [ids for ids, _ in one]


def test_a_part_of_the_samples_without_repeats(opened):
    order = Given(lambda epoch: np.arange(epoch, 100 + epoch), samples=100)
    with forebay.Loader(opened("npy"), 10, order=order, node_memory=MEMORY) as loader:
        assert [batch.indices.tolist() for batch in loader] == np.arange(100).reshape(10, 10).tolist()
        assert next(iter(loader)).indices.tolist() == list(range(1, 11))


def test_weighted_draws_follow_the_weights():
    weights = np.array([0.0, 1, 2, 0, 5, 0])
    drawn = np.bincount(Weighted(weights, samples=200_000).ids(7, 0), minlength=6)
    assert drawn.sum() == 200_000
    assert (drawn[weights == 0] == 0).all()
    share = weights / weights.sum()
    # Five standard deviations of a binomial distribution; the draws are fixed by the seed.
    assert (np.abs(drawn - 200_000 * share) <= 5 * np.sqrt(200_000 * share * (1 - share))).all()


def test_weighted_draws_are_independent_and_fixed():
    """Golden ids: others would change the runs of users."""
    order = Weighted(np.ones(1000))
    assert order.ids(3, 1)[:8].tolist() == [604, 821, 233, 756, 670, 284, 595, 213]
    assert not np.array_equal(order.ids(3, 1), order.ids(3, 2))
    assert not np.array_equal(order.ids(3, 1), order.ids(4, 1))
    # 1000 draws of 1000 leave out 1000 / e, with a standard deviation of 10.
    assert abs(1000 - len(np.unique(order.ids(3, 1))) - 1000 / np.e) < 50


def test_weighted_orders_are_the_same_on_any_ranks_and_after_a_resume(pool, opened):
    weights = np.arange(SAMPLES) % 7
    options = {"order": Weighted(weights, samples=96), "node_memory": MEMORY, "seed": 5}
    run = functools.partial(pool.run, dataset=opened("tar"))
    one = run(1, choice.deliver, options=options | {"batch_size": 8})[0][0]
    ids = [number for ids, _ in one for number in ids]
    assert ids == [*Weighted(weights, samples=96).ids(5, 0), *Weighted(weights, samples=96).ids(5, 1)]
    first = run(2, choice.deliver, options=options | {"batch_size": 4}, stop=7)
    rest = run(4, choice.deliver, options=options | {"batch_size": 2}, state=first[0][1])
    steps = [
        tuple(itertools.chain(*(ids for ids, _ in parts)))
        for ranks in (first, rest)
        for parts in zip(*(steps for steps, _ in ranks), strict=True)
    ]
    assert steps == [ids for ids, _ in one]


def test_a_state_is_of_a_number_of_ids(opened):
    make = functools.partial(forebay.Loader, opened("npy"), 5, node_memory=MEMORY)
    with make(order=Weighted(np.ones(SAMPLES), samples=50)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with (
        make(order=Weighted(np.ones(SAMPLES), samples=60)) as loader,
        pytest.raises(forebay.ForebayError, match="given_samples is 50 in the state and 60"),
    ):
        loader.load_state_dict(state)


def test_a_state_is_of_the_same_weights(opened):
    make = functools.partial(forebay.Loader, opened("npy"), 5, node_memory=MEMORY)
    ones, twos, function = Weighted(np.ones(SAMPLES)), Weighted(np.arange(SAMPLES)), np.arange(SAMPLES)
    states = {}
    for name, order in {"ones": ones, "function": lambda _: function}.items():
        with make(order=order) as loader:
            next(iter(loader))
            states[name] = loader.state_dict()
            assert loader.state_at((0, 0)) == states[name]
            loader.load_state_dict(states[name])
    for order, state in [(twos, "ones"), (ones, "function"), (lambda _: function, "ones")]:
        with (
            make(order=order) as loader,
            pytest.raises(forebay.OptionError, match=r"digest of the weights is .* in the state and .* in"),
        ):
            loader.load_state_dict(states[state])


def test_nodes_with_other_weights_are_refused(pool, opened):
    weights = [np.ones(SAMPLES), np.arange(SAMPLES)]
    options = [{"batch_size": 4, "node_memory": MEMORY, "order": Weighted(one)} for one in weights]
    begun = pool.begin(
        2,
        choice.deliver,
        lambda rank: {"options": options[rank]},
        nodes=[0, 1],
        over="tcp",
        dataset=opened("raw"),
    )
    found = pool.outcomes(begun)
    assert all(isinstance(one, Raised) and "weights" in one.trace for one in found)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (
            Given(lambda epoch: np.zeros(20, int), samples=20),
            "sample id 0 at position 1, expected one that was not",
        ),
        (Given(lambda epoch: np.arange(19), samples=20), "19 sample ids, expected 20"),
        (Given(lambda epoch: np.arange(20)), f"20 sample ids, expected {SAMPLES}, one for each sample"),
        (Given(lambda epoch: np.arange(190, 210), samples=20), f"sample id {SAMPLES} at position"),
        (Given(lambda epoch: np.arange(20), samples=SAMPLES + 1), "at most the samples of the dataset"),
        (
            Weighted(np.ones(SAMPLES - 1)),
            f"a weight for each of {SAMPLES} samples, found {SAMPLES - 1} weights",
        ),
    ],
)
def test_ids_that_are_not_as_declared_are_refused(opened, order, says):
    def first():
        with forebay.Loader(opened("npy"), 4, order=order, node_memory=MEMORY) as loader:
            next(iter(loader))

    with pytest.raises(forebay.OptionError, match=says):
        first()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Given(3), "expected a function of the epoch, found 3"),
        (lambda: Given(curriculum, samples=0), "samples=: expected an integer of at least 1"),
        (lambda: Given(curriculum, samples=2**32), "samples=: expected an integer of at most 4294967295"),
        (lambda: Given(curriculum, repeats=1), "repeats=: expected True or False"),
        (lambda: Weighted([1.0, -0.5]), "weights of at least 0, found -0.5 for sample 1"),
        (lambda: Weighted([1.0, np.nan]), "found nan for sample 1"),
        (lambda: Weighted([0, 0]), "a finite sum above 0"),
        (lambda: Weighted([]), "one weight for each sample"),
        (lambda: Weighted([[1.0]]), r"shape \(1, 1\)"),
        (lambda: Weighted(["a"]), "one weight for each sample"),
        (lambda: Weighted([1.0], samples=2.5), "samples=: expected an integer"),
    ],
)
def test_wrong_arguments_say_what_is_expected(make, says):
    with pytest.raises(forebay.OptionError, match=says):
        make()
