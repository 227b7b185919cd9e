"""forebay.grain: batches of a loader and samples by number in Grain's pipelines."""

from __future__ import annotations

import json

import numpy as np
import pytest

import forebay

grain = pytest.importorskip("grain", reason="grain could not be had")

from grain._src.python.testing.experimental import assert_equal_output_after_checkpoint  # noqa: E402

import forebay.grain  # noqa: E402

STEPS = 12

# Grain's threads end with their iterator, whenever that is collected.
pytestmark = pytest.mark.filterwarnings("ignore:loader .* batch buffers of this rank are still in use")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("grain") / "train.npz"
    np.savez(path, x=np.arange(96 * 5, dtype=np.float32).reshape(96, 5), label=np.arange(96))
    return path


@pytest.fixture
def options():
    return {"order": "shuffle", "seed": 3, "node_memory": "16MiB"}


@pytest.fixture
def expected(path, options):
    with forebay.Loader(path, 8, **options, name="expected") as loader:
        return [[batch["label"].tolist() for batch in loader] for _ in range(4)]


def labels(batches):
    return [batch["label"].tolist() for batch in batches]


def prefetched(dataset, threads):
    """A dataset that Grain reads ahead of, in a thread of its own."""
    if not threads:
        return dataset
    return grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=3)


def test_each_iterator_is_an_epoch_and_elements_are_plain(path, options, expected):
    dataset = forebay.grain.dataset(path, 8, **options)
    assert {type(batch) for batch in dataset} == {dict}
    assert [labels(dataset) for _ in range(3)] == expected[1:]
    mapped = forebay.grain.dataset(path, 8, **options, name="mapped").map(lambda batch: batch["label"] * 2)
    assert [batch.tolist() for batch in mapped] == [[2 * one for one in batch] for batch in expected[0]]


def test_endless_goes_through_the_epochs_and_repeat_of_grain_repeats_one(path, options, expected):
    flat = [batch for epoch in expected for batch in epoch]
    twice = grain.experimental.RepeatIterDataset(forebay.grain.dataset(path, 8, **options), num_epochs=2)
    assert labels(twice) == 2 * expected[0]
    endless = iter(forebay.grain.dataset(path, 8, endless=True, **options, name="endless"))
    assert labels(next(endless) for _ in range(40)) == flat[:40]


@pytest.mark.parametrize("threads", [False, True])
def test_any_state_resumes_exactly(path, options, threads):
    def sample(sample, rng):
        return sample["x"] + rng.random(dtype=np.float32), sample["label"]

    chosen = np.random.default_rng(5).integers(0, 30, 50)
    options = {**options, "transform": sample, "workers": 2, "prefetch": 3}
    dataset = prefetched(forebay.grain.dataset(path, 8, endless=True, **options), threads)
    iterator = iter(dataset)
    states, found = [json.dumps(iterator.get_state())], []
    for _ in range(34):
        batch = next(iterator)
        assert type(batch) is tuple
        found.append(batch[0].tobytes())
        states.append(json.dumps(iterator.get_state()))
    for stop in chosen:
        iterator.set_state(json.loads(states[stop]))
        assert json.dumps(iterator.get_state()) == states[stop]
        assert [next(iterator)[0].tobytes() for _ in range(4)] == found[stop : stop + 4]
    iterator.close()
    # In a pipeline of its own, as a new process would make it.
    again = iter(prefetched(forebay.grain.dataset(path, 8, endless=True, **options, name="again"), threads))
    again.set_state(json.loads(states[17]))
    assert [next(again)[0].tobytes() for _ in range(4)] == found[17:21]
    again.close()


def test_a_state_before_the_first_batch_is_that_of_the_next_epoch(path, options, expected):
    dataset = forebay.grain.dataset(path, 8, **options)
    assert labels(batch for batch, _ in zip(iter(dataset), range(3), strict=False)) == expected[0][:3]
    # The epoch that was broken off counts.
    state = iter(dataset).get_state()
    iterator = iter(forebay.grain.dataset(path, 8, **options, name="other"))
    iterator.set_state(state)
    assert labels(iterator) == expected[1]


def test_a_closed_iterator_delivers_nothing_and_its_loader_stays_open(path, options, expected):
    dataset = forebay.grain.dataset(path, 8, **options)
    iterator = iter(dataset)
    next(iterator)
    iterator.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(iterator)
    assert labels(dataset) == expected[1]


def test_worker_processes_are_refused(path, options):
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    dataset = forebay.grain.dataset(path, 8, **options)
    with pytest.raises(forebay.OptionError, match="make the loader in the process that iterates it"):
        next(iter(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))))


def test_a_state_of_other_data_is_refused(path, options, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((96, 2)))
    state = iter(forebay.grain.dataset(tmp_path / "x.npy", 8, **options, name="other")).get_state()
    with pytest.raises(forebay.OptionError, match="dataset"):
        iter(forebay.grain.dataset(path, 8, **options)).set_state(state)


def test_samples_by_number_are_a_source_of_grain(path):
    source = forebay.grain.source(path)
    batches = grain.MapDataset.source(source).shuffle(seed=1).batch(8)
    assert len(batches) == STEPS
    found = [label for batch in batches for label in batch["label"].tolist()]
    assert sorted(found) == list(range(96))
    sample = grain.MapDataset.source(source)[17]
    assert np.array_equal(sample["x"], np.arange(17 * 5, 18 * 5, dtype=np.float32))


@pytest.mark.parametrize(
    "made",
    [
        lambda dataset: dataset,
        lambda dataset: prefetched(dataset, threads=True),
        lambda dataset: dataset.map(lambda batch: batch["x"] + batch["label"][:, None]),
        lambda dataset: grain.experimental.LimitIterDataset(dataset, 7),
    ],
    ids=["plain", "prefetched", "mapped", "limited"],
)
@pytest.mark.parametrize("endless", [False, True])
def test_what_grain_itself_asks_of_checkpoints_holds(path, options, made, endless):
    dataset = made(forebay.grain.dataset(path, 8, **options, endless=endless))
    if endless:
        # Over the end of an epoch.
        dataset = grain.experimental.LimitIterDataset(dataset, STEPS + 3)
    assert_equal_output_after_checkpoint(dataset)
