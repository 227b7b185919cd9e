"""Mixtures: the proportions of the documented formula, each pass once, and what cannot be mixed."""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import math
import pickle

import numpy as np
import pytest

import forebay
import forebay_lab
from support.ranks import choice
from support.ranks.pool import Raised
from support.tiering import FORMATS, MEMORY, opening

ONE = 1 << 64
WINDOW = 8


class Tree:
    """The tree of docs/mixtures.md in whole numbers, without a look at the engine."""

    def __init__(self, weights):
        waiting = [(weight, age, age) for age, weight in enumerate(weights)]
        heapq.heapify(waiting)
        self.sources = ages = len(weights)
        self.children = {}
        while len(waiting) > 1:
            (lighter, _, right), (heavier, _, left) = heapq.heappop(waiting), heapq.heappop(waiting)
            self.children[ages] = heavier * ONE // (lighter + heavier), left, right
            heapq.heappush(waiting, (lighter + heavier, ages, ages))
            ages += 1
        self.root = ages - 1

    def draw(self, position, lane=0, lanes=1):
        """Return the source of a position, and how many of its draws come before."""
        stride = max(1, lanes * 0x9E3779B97F4A7C15 >> 64)
        while math.gcd(stride, lanes) > 1:
            stride += 1
        node = self.root
        while node >= self.sources:
            share, left, right = self.children[node]
            phase = (2 * lane + 1) * ONE // (2 * lanes)
            before, after = ((share * at + phase) // ONE for at in (position, position + 1))
            node, position = (left, before) if after > before else (right, position - before)
            lane = lane * stride % lanes
        return node, position


def units(weights):
    return [round(weight * (1 << 53)) for weight in weights]


def tokens(path, windows, seed):
    np.random.default_rng(seed).integers(0, 60_000, windows * WINDOW).astype("<u2").tofile(path)
    return forebay.tokens(path, WINDOW, dtype="u2")


@pytest.fixture
def token_sets(tmp_path):
    """Make token datasets of these numbers of windows."""

    def make(*counts):
        return {f"s{at}": tokens(tmp_path / f"{at}.bin", count, at) for at, count in enumerate(counts)}

    return make


def delivered(pool, size, mixture, order, **more):
    """Give the ids of each global batch of an epoch on some ranks, and the state after it."""
    options = {"batch_size": 12 // size, "order": order, "node_memory": MEMORY, "seed": 3}
    found = pool.run(size, choice.deliver, dataset=mixture, options=options, **{"epochs": 1, **more})
    steps = [
        list(itertools.chain(*(ids for ids, _ in parts)))
        for parts in zip(*(steps for steps, _ in found), strict=True)
    ]
    return steps, found[0][1]


MIXES = [
    ([100, 60], [0.7, 0.3]),
    ([60, 100, 90], [0.2, 0.5, 0.3]),
    ([150, 40, 200, 70, 90], [0.4, 0.05, 0.25, 0.2, 0.1]),
]
GROUP = forebay.Group(samples=4, window=2, lanes=12)


@pytest.mark.parametrize(("counts", "weights"), MIXES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sequential_ids_are_those_of_the_formula(pool, token_sets, counts, weights, size):
    mixture = forebay.mix(token_sets(*counts), weights=weights, stop="all")
    steps, _ = delivered(pool, size, mixture, "sequential")
    tree, firsts = Tree(units(weights)), np.cumsum([0, *counts])
    found = [number for step in steps for number in step]
    draws = [tree.draw(position) for position in range(len(found))]
    assert found == [firsts[source] + draw % counts[source] for source, draw in draws]
    drawn = np.bincount([source for source, _ in draws])
    assert (drawn >= counts).all()
    assert (np.bincount([source for source, _ in draws[:-12]], minlength=len(counts)) < counts).any()


@pytest.mark.parametrize(("counts", "weights"), MIXES)
def test_shuffle_passes_each_source_in_the_proportions_of_the_formula(token_sets, counts, weights):
    mixture = forebay.mix(token_sets(*counts), weights=weights, stop="all")
    epochs = []
    with forebay.Loader(mixture, 12, order="shuffle", node_memory=MEMORY) as loader:
        for _ in range(2):
            found = [number for batch in loader for number in batch.indices.tolist()]
            assert len(found) == 12 * len(loader)
            epochs.append(found)
    tree = Tree(units(weights))
    for found in epochs:
        numbers, ids = mixture.source_of(found)
        assert numbers.tolist() == [tree.draw(position)[0] for position in range(len(found))]
        for source, count in enumerate(counts):
            of_source = ids[numbers == source].tolist()
            passes = [of_source[at : at + count] for at in range(0, len(of_source), count)]
            assert len(passes[0]) == count
            assert all(len(set(one)) == len(one) for one in passes)
            assert len(passes) < 2 or len(passes[1]) < 4 or passes[0][: len(passes[1])] != passes[1]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("counts", "weights"), MIXES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_lanes_of_groups_follow_the_formula_on_any_ranks(pool, token_sets, counts, weights, size):
    mixture = forebay.mix(token_sets(*counts), weights=weights)
    order = forebay.Group(samples=4, window=2, lanes=12)
    steps, _ = delivered(pool, size, mixture, order)
    tree, firsts = Tree(units(weights)), np.cumsum([0, *counts])
    assert len(set(itertools.chain(*steps))) == 12 * len(steps)
    for lane in range(12):
        numbers, _ = mixture.source_of([step[lane] for step in steps])
        assert numbers.tolist() == [tree.draw(step, lane, 12)[0] for step in range(len(steps))]
    drawn = np.histogram(np.concatenate(steps), firsts)[0]
    assert np.abs(drawn - np.array(weights) * 12 * len(steps)).max() < 6
    if size > 1:
        assert steps == delivered(pool, 1, mixture, order)[0]


@pytest.mark.parametrize("order", ["sequential", "shuffle", GROUP], ids=["sequential", "shuffle", "group"])
@pytest.mark.parametrize("seed", range(3))
def test_resuming_on_other_ranks_equals_going_on(pool, token_sets, order, seed):
    counts, weights = MIXES[seed]
    stop = ["first", "all", "never"][seed]
    mixture = forebay.mix(token_sets(*counts), weights=weights, stop=stop)
    at = int(np.random.default_rng(seed).integers(1, 9))
    whole, _ = delivered(pool, 1, mixture, order, stop=10)
    begun, state = delivered(pool, 2, mixture, order, stop=at)
    rest, _ = delivered(pool, 4, mixture, order, state=state, stop=len(whole) - at)
    assert begun + rest == whole


def epoch_of(mixture, **options):
    with forebay.Loader(mixture, 10, node_memory=MEMORY, **options) as loader:
        return [batch.indices.tolist() for batch in loader]


@pytest.mark.parametrize("order", ["sequential", "shuffle", forebay.Group(samples=4, window=2, lanes=5)])
def test_an_epoch_ends_before_a_repeat_or_after_the_last_sample(token_sets, order):
    sources = token_sets(100, 300)
    seen = np.bincount(np.concatenate(epoch_of(forebay.mix(sources, weights=[0.5, 0.5]), order=order)))
    assert seen.max() == 1
    # Lanes end a few samples before the others.
    assert 200 - 3 * 10 <= seen.sum() <= 200
    all_of_it = forebay.mix(sources, weights=[0.5, 0.5], stop="all")
    seen = np.bincount(np.concatenate(epoch_of(all_of_it, order=order)), minlength=400)
    assert seen.min() == 1
    assert 600 <= seen.sum() <= 600 + 3 * 10
    # Lanes may be in different passes at the end.
    assert seen[:100].max() <= 4
    assert seen[100:].max() <= 2


def test_by_default_an_epoch_has_nearly_all_samples_once(token_sets):
    mixture = forebay.mix(token_sets(130, 70, 300))
    assert mixture.weights == {"s0": 0.26, "s1": 0.14, "s2": 0.6}
    assert mixture.stop == "first"
    for order in ("shuffle", forebay.Group(samples=4, window=2, lanes=1)):
        seen = np.concatenate(epoch_of(mixture, order=order))
        assert len(set(seen.tolist())) == len(seen) >= 470


def test_an_epoch_that_never_ends_has_no_length(token_sets):
    mixture = forebay.mix(token_sets(30, 50), weights=[0.5, 0.5], stop="never")
    with forebay.Loader(mixture, 10, node_memory=MEMORY, order="shuffle") as loader:
        with pytest.raises(TypeError, match="has no number of steps"):
            len(loader)
        assert loader
        assert loader.config.order.steps is None
        assert [source.passes for source in loader.config.order.mixture.sources] == [None, None]
        seen = np.bincount(
            np.concatenate([batch.indices for batch in itertools.islice(loader, 60)]), minlength=80
        )
    assert (seen[:30].min(), seen[:30].max(), seen[30:].min(), seen[30:].max()) == (10, 10, 6, 6)


@pytest.mark.parametrize("kind", FORMATS)
def test_samples_are_those_of_the_sources(tier_data, kind):
    whole = forebay.open(tier_data.formats[kind], **opening(kind))
    a, b = whole.select(np.arange(150, 0, -3)), whole.split([0.2, 0.3], seed=1)[1]
    mixture = forebay.mix({"a": a, "b": b}, weights=[0.25, 0.75], stop="all")
    assert len(mixture) == len(a) + len(b)
    assert mixture.fields == whole.fields
    sources = list(mixture.sources.values())
    with forebay.Loader(mixture, 8, node_memory=MEMORY, order=forebay.Group(samples=4, window=2)) as loader:
        for batch in loader:
            for place, (number, sample) in enumerate(zip(*mixture.source_of(batch.indices), strict=True)):
                expected = sources[number][sample]
                for name in batch:
                    value = expected if isinstance(expected, bytes) else expected[name]
                    value = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
                    np.testing.assert_array_equal(np.asarray(batch[name][place]), value)


def test_groups_read_each_byte_once_in_a_pass(tmp_path):
    """Reads of a mixture are as large as those of a single dataset, to pages at their ends."""
    rows = np.random.default_rng(1).integers(0, 255, (3000, 4096), "uint8")
    np.save(tmp_path / "a.npy", rows[:2000])
    np.save(tmp_path / "b.npy", rows[2000:])
    mixture = forebay.mix({name: forebay.open(tmp_path / f"{name}.npy") for name in "ab"})
    order = forebay.Group(samples=64, window=4)
    with forebay.Loader(
        mixture, 16, order=order, node_memory=MEMORY, strategy="pread", expected_epochs=1
    ) as loader:
        samples = sum(len(batch.indices) for batch in loader)
        stats = loader.stats()
    assert samples >= 2900
    assert samples * 4096 <= stats["read_bytes"] <= 1.25 * samples * 4096
    assert stats["reads"] <= samples / 16


@pytest.mark.parametrize("level", [{"strategy": "pread"}, {"store": "auto"}])
def test_nodes_deliver_what_one_process_does(pool, token_sets, level):
    mixture = forebay.mix(token_sets(100, 60, 40), weights=[0.5, 0.3, 0.2])
    options = {"order": GROUP, "node_memory": MEMORY, "seed": 3, "batch_size": 3, **level}
    where = {"nodes": [0, 0, 1, 1], "over": "tcp"}
    begun = pool.begin(4, choice.deliver, **where, dataset=mixture, options=options, epochs=1)
    four = pool.outcomes(begun)
    assert not [found.trace for found in four if isinstance(found, Raised)]
    steps = zip(*(steps for steps, _ in four), strict=True)
    found = [list(itertools.chain(*(ids for ids, _ in parts))) for parts in steps]
    assert found == delivered(pool, 1, mixture, GROUP)[0]


def test_tiers_change_no_sample(token_sets, tmp_path, daemon):
    mixture = forebay.mix(token_sets(4000, 1000), weights=[0.5, 0.5], stop="all")
    plain = epoch_of(mixture, order="shuffle", name="plain")
    (tmp_path / "tier").mkdir()
    with forebay.Loader(
        mixture, 10, node_memory=MEMORY, order="shuffle", tiers=[f"{tmp_path / 'tier'}:64MiB"], name="tiers"
    ) as loader:
        for epoch in range(2):
            for step, batch in enumerate(loader):
                assert epoch or batch.indices.tolist() == plain[step]
                np.testing.assert_array_equal(batch["tokens"], mixture.read(batch.indices)["tokens"])


def test_a_mixture_is_a_dataset_that_can_be_pickled(token_sets):
    mixture = forebay.mix(token_sets(20, 30), weights=[0.9, 0.1], stop="never")
    assert repr(mixture) == '<forebay.Mixture tokens s0 0.9, s1 0.1, stop="never">'
    again = pickle.loads(pickle.dumps(mixture))
    assert (again.fingerprint, again.weights, again.stop) == (mixture.fingerprint, mixture.weights, "never")
    assert mixture[25]["tokens"].tolist() == mixture.sources["s1"][5]["tokens"].tolist()
    numbers, ids = mixture.source_of([0, 19, 20, -1])
    assert (numbers.tolist(), ids.tolist()) == ([0, 0, 1, 1], [0, 19, 0, 29])
    with pytest.raises(IndexError, match="sample 50 of a dataset of 50 samples"):
        mixture.source_of([50])
    for part in (lambda: mixture.select([1]), lambda: mixture.split([0.5, 0.5])):
        with pytest.raises(forebay.OptionError, match="found a mixture"):
            part()


def test_the_loader_says_what_it_mixes(token_sets):
    mixture = forebay.mix(token_sets(100, 60), weights=[0.7, 0.3], stop="all")
    with forebay.Loader(mixture, 10, node_memory=MEMORY, order="shuffle") as loader:
        found = loader.config.order.mixture
        assert found.stop == "all"
        assert [(one.name, one.samples) for one in found.sources] == [("s0", 100), ("s1", 60)]
        assert [one.weight for one in found.sources] == pytest.approx([0.7, 0.3])
        assert [one.passes for one in found.sources] == pytest.approx([1.4, 1.0])
        assert loader.config.order.shuffle_quality.order_entropy is None
        lines = [line for line in loader.explain().splitlines() if line.startswith("mixture: ")]
    assert lines == [
        'mixture: 2 sources; an epoch ends when each sample has come (stop="all")',
        "mixture: s0: 70 %; 100 samples, passed 1.4 times per epoch",
        "mixture: s1: 30 %; 60 samples, passed 1 times per epoch",
    ]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"weights": [0.6, 0.4]}, "mixture is 's0 0.7.* in the state and 's0 0.6"),
        ({"weights": [0.7, 0.3], "stop": "all"}, "stop=first' in the state and .* stop=all'"),
        ({"weights": [0.7, 0.3], "rename": True}, "'s0 0.7.*' in the state and 'other 0.7"),
    ],
)
def test_a_state_of_another_mixture_is_refused(token_sets, other, says):
    sources, other = token_sets(100, 60), dict(other)
    make = functools.partial(forebay.Loader, batch_size=10, node_memory=MEMORY)
    with make(forebay.mix(sources, weights=[0.7, 0.3])) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    if other.pop("rename", False):
        sources = {"other": sources["s0"], "s1": sources["s1"]}
    with (
        make(forebay.mix(sources, **other)) as loader,
        pytest.raises(forebay.OptionError, match=says),
    ):
        loader.load_state_dict(state)


def test_ranks_with_other_weights_are_refused(pool, token_sets):
    sources = token_sets(100, 60)
    mixtures = [forebay.mix(sources, weights=weights) for weights in ([0.7, 0.3], [0.6, 0.4])]
    options = {"batch_size": 4, "node_memory": MEMORY}
    begun = pool.begin(2, choice.deliver, lambda rank: {"dataset": mixtures[rank]}, options=options)
    found = pool.outcomes(begun)
    assert all(isinstance(one, Raised) and "disagree on order.mixture" in one.trace for one in found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "contiguous"}, "order contiguous: the dataset is a mixture"),
        ({"order": "local-shuffle"}, "order local-shuffle: the dataset is a mixture"),
        ({"order": "opportunistic", "store": "auto"}, "order opportunistic: the dataset is a mixture"),
        ({"order": lambda epoch: np.arange(160)}, "order given: the dataset is a mixture"),
        ({"last_batch": "carry", "order": "sequential"}, 'last_batch="carry" with a mixture'),
        (
            {"strategy": forebay_lab.strategy("lmdb"), "order": "sequential"},
            "the strategy finds samples by a cursor, and the dataset is",
        ),
        ({"batch_size": 500}, 'source "s1" has 60 samples, too few for one step of 500 samples'),
    ],
)
def test_what_a_mixture_cannot_have_is_refused(token_sets, options, says):
    mixture = forebay.mix(token_sets(100, 60), weights=[0.5, 0.5])
    with pytest.raises(forebay.OptionError, match=says):
        forebay.Loader(mixture, node_memory=MEMORY, **{"batch_size": 10, **options})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"weights": {"s0": 0.7, "s1": 0.3}}, "expected a sequence of numbers, found dict"),
        ({"weights": 0.5}, "expected a sequence of numbers, found float"),
        ({"weights": [0.7]}, r"expected 2 numbers, one for each source, found 1"),
        ({"weights": [0.7, 0.2]}, r"a sum of 1, found 0.9\nhint: weights=\[0.777777777778, 0.222222222222\]"),
        ({"weights": [1.0, 0]}, r"a number above 0 for source 's1', found 0\nhint: leave the source out"),
        ({"weights": [1.5, -0.5]}, "a number above 0 for source 's1', found -0.5"),
        ({"weights": [0.5, math.nan]}, "a number above 0 for source 's1', found nan"),
        ({"weights": [math.inf, 0.5]}, "a number above 0 for source 's0', found inf"),
        ({"weights": [True, 0.5]}, "a number above 0 for source 's0', found True"),
        ({"weights": ["a", 0.5]}, "a number above 0 for source 's0', found 'a'"),
        ({"weights": [1.0, 1e-17]}, r"at least 2\*\*-53 for source 's1'"),
        ({"stop": "last"}, "stop=: expected one of first, all, never, found 'last'"),
    ],
)
def test_wrong_arguments_say_what_is_expected(token_sets, arguments, says):
    with pytest.raises(forebay.OptionError, match=says):
        forebay.mix(token_sets(10, 20), **arguments)


def npz(path, **arrays):
    np.savez(path, **arrays)
    return forebay.open(path)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path, a: [a], "expected a mapping of name to dataset, found list"),
        (lambda path, a: {}, "at least two sources, found 0"),
        (lambda path, a: {"a": a}, "at least two sources, found 1"),
        (lambda path, a: {"a": a, 3: a}, "expected a name for each source, found 3"),
        (lambda path, a: {"a": a, "b": str(path)}, "source 'b': expected a dataset, found str"),
        (lambda path, a: {"a": a, "b": forebay.mix({"x": a, "y": a})}, "source 'b' is a mixture itself"),
        (
            lambda path, a: {"a": a, "b": tokens(path / "x.bin", 5, 1)},
            "source 'b': the format is tokens, in 'a' npz\nhint: forebay convert",
        ),
        (
            lambda path, a: {"a": a, "b": npz(path / "b.npz", x=np.zeros((5, 3)), y=np.zeros(5, "i8"))},
            "source 'b': field 'y' is int64, in 'a' int32",
        ),
        (
            lambda path, a: {"a": a, "b": npz(path / "b.npz", x=np.zeros((5, 4)), y=np.zeros(5, "i4"))},
            r"source 'b': field 'x' is float64 of shape \(4,\), in 'a' float64 of shape \(3,\)",
        ),
        (
            lambda path, a: {"a": a, "b": npz(path / "b.npz", x=np.zeros((5, 3)))},
            "source 'b': field 'y' is missing, in 'a' int32",
        ),
        (
            lambda path, a: {"a": a, "b": forebay.open(path / "a.npz", sample_axis=0)},
            "source 'b': sample_axis= of forebay.open is 'first', in 'a' 'auto'",
        ),
        (
            lambda path, a: {
                "a": tokens(path / "x.bin", 5, 1),
                "b": forebay.tokens(path / "x.bin", 8, dtype="u2", stride=4),
            },
            "source 'b': stride= of forebay.tokens is 4, in 'a' 8",
        ),
    ],
)
def test_sources_that_do_not_fit_say_what_differs(tmp_path, make, says):
    a = npz(tmp_path / "a.npz", x=np.zeros((10, 3)), y=np.zeros(10, "i4"))
    with pytest.raises(forebay.OptionError, match=says):
        forebay.mix(make(tmp_path, a))


def test_the_type_of_tokens_may_be_given_for_the_files_that_do_not_say_it(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(80, dtype="u2"))
    sources = {"a": forebay.tokens(tmp_path / "a.npy", WINDOW), "b": tokens(tmp_path / "b.bin", 5, 1)}
    mixture = forebay.mix(sources)
    assert mixture.fields == {"tokens": ("uint16", (WINDOW,))}
    assert mixture[9]["tokens"].tolist() == list(range(72, 80))
