"""Functions of samples and batches: results, positions, errors, and what is left behind."""

from __future__ import annotations

import gc
import itertools
import os
import random
import re
import threading
import warnings
from typing import NamedTuple

import numpy as np
import pytest

import forebay
import support
from forebay._samples.rng import Randomness
from support import format_files
from support.ranks import functions, work
from support.ranks.functions import label
from support.ranks.pool import Raised

SAMPLES = 100
ORDERS = [
    "sequential",
    "contiguous",
    "shuffle",
    "group",
    lambda epoch: np.roll(np.arange(SAMPLES)[::-1], epoch),
]


def numpy_rng(seed, epoch, number):
    """The generator of a sample as docs/per-sample.md defines it."""
    return np.random.Generator(np.random.Philox(key=seed + (epoch << 64), counter=number << 192))


# --- equal to the plain loader ---


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("threads", "prefetch"), [(1, 0), (3, 2), (4, 6)])
def test_results_are_those_of_a_serial_loop_over_the_plain_loader(make, order, threads, prefetch):
    plain = make(order=order, seed=4)
    serial = [
        (
            batch.position,
            batch.indices.tolist(),
            [
                (bytes(row), numpy_rng(4, batch.position.epoch, int(number)).random())
                for row, number in zip(batch["data"], batch.indices, strict=True)
            ],
        )
        for _ in range(2)
        for batch in plain
    ]
    loader = make(
        order=order,
        seed=4,
        workers=threads,
        prefetch=prefetch,
        name="threads",
        transform=lambda sample, rng: {"bytes": bytes(sample["data"]), "random": rng.random()},
    )
    found = [
        (batch.position, batch.indices.tolist(), list(zip(batch["bytes"], batch["random"], strict=True)))
        for _ in range(2)
        for batch in loader
    ]
    assert found == serial
    assert loader.state_dict() == plain.state_dict()
    assert loader.stats()["heap_batches"] == 0


@pytest.mark.parametrize("kind", format_files.FORMATS)
def test_samples_of_every_format_are_what_the_dataset_has(tmp_path, kind):
    dataset = format_files.opened(format_files.write(tmp_path / kind, kind, 3), kind)
    fixed = {name for name, (_, shape) in dataset.fields.items() if shape is not None}

    def check(sample):
        for name, value in sample.items():
            assert isinstance(value, np.ndarray)
            assert value.flags.writeable
            assert name not in fixed or value.shape == dataset.fields[name][1]
        return {name: value.tobytes() for name, value in sample.items()}

    with forebay.Loader(
        dataset, 8, order="shuffle", transform=check, workers=2, node_memory="64MiB"
    ) as loader:
        for batch in loader:
            for at, number in enumerate(batch.indices.tolist()):
                for name, value in dataset.native.sample(number).items():
                    assert batch[name][at] == (value if isinstance(value, bytes) else value.tobytes())


def test_the_random_numbers_of_a_sample_are_defined_by_numpy_alone():
    for seed, epoch, number in itertools.product((0, 7, 2**64 - 1), (0, 3, 2**40), (0, 1, 2**62)):
        found = Randomness(seed, epoch).of(number)
        assert found.random(5).tolist() == numpy_rng(seed, epoch, number).random(5).tolist()
    with pytest.raises(TypeError):
        Randomness(1, 2).of(3).spawn(1)
    # Pinned: the augmentation of a checkpoint must not change with a version.
    assert (
        Randomness(1, 2).of(3).integers(0, 1000, 4).tolist()
        == numpy_rng(1, 2, 3).integers(0, 1000, 4).tolist()
    )
    assert Randomness(1, 2).of(3).bit_generator.random_raw(1).tolist() == PINNED


PINNED = [1170280437898119671]


# --- several ranks ---


@pytest.fixture(scope="module")
def alone(pool, small_lmdb):
    """What one rank finds for each sample of two epochs, by order."""
    found = {}
    for order in ("shuffle", "group"):
        (one,) = pool.run(1, functions.deliver, path=str(small_lmdb), options=options(order, 1), epochs=2)
        found[order] = one["found"]
    return found


def options(order, ranks):
    return {
        "batch_size": 16 // ranks,
        "order": order,
        "seed": 5,
        "last_batch": "drop",
        "workers": 2,
        "prefetch": 3,
    }


def flat(ranks):
    """Return what all ranks found in each step together."""
    return [sorted(one for rank in step for one in rank) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("order", ["shuffle", "group"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sample_is_augmented_alike_on_any_number_of_ranks(pool, small_lmdb, alone, order, ranks):
    found = pool.run(ranks, functions.deliver, path=str(small_lmdb), options=options(order, ranks), epochs=2)
    assert flat([one["found"] for one in found]) == flat([alone[order]])


@pytest.mark.parametrize("order", ["shuffle", "group"])
@pytest.mark.parametrize(("before", "after", "stop"), [(1, 1, 5), (2, 4, 3), (4, 2, 1), (2, 4, 6)])
def test_a_resume_equals_never_having_stopped_on_other_ranks_too(
    pool, small_lmdb, alone, order, before, after, stop
):
    path = str(small_lmdb)
    first = pool.run(
        before, functions.deliver, path=path, options=options(order, before), epochs=1, stop=stop
    )
    state = first[0]["state"]
    assert state["step"] == stop
    second = pool.run(
        after, functions.deliver, path=path, options=options(order, after), epochs=2, state=state
    )
    found = flat([one["found"] for one in first]) + flat([one["found"] for one in second])
    assert found == flat([alone[order]])


def test_samples_that_fail_are_replaced_alike_on_any_number_of_ranks(pool, small_lmdb):
    found = {}
    for ranks in (1, 2, 4):
        outcomes = pool.run(
            ranks,
            work_that_fails,
            path=str(small_lmdb),
            options={**options("shuffle", ranks), "bad_samples": "skip"},
        )
        assert not [one for one in outcomes if isinstance(one, Raised)]
        found[ranks] = flat([one["found"] for one in outcomes])
        bad = dict(itertools.chain.from_iterable(one["bad"] for one in outcomes))
        seen = {number for step in found[ranks] for number, _ in step}
        assert seen & bad.keys() == set()
        assert bad
    assert found[1] == found[2] == found[4]


def work_that_fails(path, options, world, pipe):
    def fail(sample, rng):
        if rng.random() < 0.2:
            raise ValueError("unlucky")
        return {"random": rng.random()}

    with (
        warnings.catch_warnings(),
        work.make(path, world, {**options, "transform": fail}) as loader,
    ):
        warnings.filterwarnings("ignore", message=".*is replaced by.*")
        steps = [list(zip(batch.indices.tolist(), batch["random"].tolist(), strict=True)) for batch in loader]
        return {"found": steps, "bad": loader.bad_samples()}


# --- positions ---


@pytest.mark.parametrize("order", ["shuffle", "group"])
def test_a_resume_at_random_steps_is_exact(make, order):
    choose = random.Random(3)

    def loader(name):
        return make(
            order=order,
            seed=9,
            workers=2,
            prefetch=choose.randrange(4),
            name=name,
            transform=functions.digest,
        )

    def facts(batch):
        return batch.indices.tolist(), batch["sum"].tolist(), batch["random"].tolist()

    whole = [facts(batch) for one in [loader("whole")] for _ in range(3) for batch in one]
    steps = len(whole) // 3
    for number, at in enumerate(choose.sample(range(1, 3 * steps), 10)):
        first = loader(f"first{number}")
        batches = itertools.islice((batch for _ in range(3) for batch in first), at)
        last = list(batches)[-1]
        states = first.state_at(last.position), first.state_dict()
        assert (states[0]["epoch"], states[0]["step"]) == divmod(at, steps) or at % steps == 0
        first.close()
        second = loader(f"second{number}")
        second.load_state_dict(states[number % 2])
        epochs = 3 - states[number % 2]["epoch"]
        assert [facts(batch) for _ in range(epochs) for batch in second] == whole[at:]
        second.close()


def test_a_position_counts_what_the_script_got(make):
    loader = make(order="sequential", transform=label, workers=2, prefetch=4)
    plain = [
        int(label({"data": row}))
        for row in make(order="sequential", name="plain", batch_size=100).__iter__().__next__()["data"]
    ]
    iteration = iter(loader)
    for step in range(3):
        assert loader.state_dict()["step"] == step
        assert next(iteration).tolist() == plain[8 * step : 8 * step + 8]
    del iteration  # breaks off
    assert loader.state_dict()["step"] == 3
    assert loader.epoch == 0
    assert len(list(loader)) == 13
    assert (loader.epoch, loader.state_dict()["step"]) == (2, 0)
    loader.set_epoch(7)
    assert [batch.tolist() for batch in loader] == [plain[at : at + 8] for at in range(0, 100, 8)]
    assert loader.epoch == 8


def test_a_stale_iterator_says_so_and_takes_nothing_from_the_newer_one(make, says):
    loader = make(order="sequential", transform=label, workers=2)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    found = [next(newer).tolist()]
    with says(forebay.ForebayError):
        next(older)
    with pytest.raises(StopIteration):
        next(older)
    found += [batch.tolist() for batch in newer]
    loader.set_epoch(0)
    assert [batch.tolist() for batch in loader] == found
    # One left over from before the loader moved.
    left = iter(loader)
    next(left)
    loader.set_epoch(0)
    with pytest.raises(forebay.ForebayError, match="stale"):
        next(left)


def test_threads_that_share_an_iterator_get_each_batch_once(make):
    loader = make(order="sequential", batch_size=1, transform=lambda sample: {"x": label(sample)}, workers=2)
    iteration = iter(loader)
    found = []

    def take():
        found.extend((batch.position.step, int(batch.indices[0])) for batch in iteration)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(step, step) for step in range(SAMPLES)]


# What a stale iterator had under way keeps its buffers until a thread has finished its sample.
@pytest.mark.filterwarnings("ignore:.*batch buffers of this rank are still in use")
def test_threads_that_iterate_one_loader_at_once_never_get_short_epochs_in_silence(make):
    loader = make(order="sequential", batch_size=4, transform=lambda sample: {"x": label(sample)}, workers=2)
    outcomes = []

    def epoch():
        try:
            outcomes.append([number for batch in loader for number in batch.indices.tolist()])
        except forebay.ForebayError as error:
            outcomes.append(str(error))

    for _ in range(5):
        outcomes.clear()
        threads = [threading.Thread(target=epoch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all("stale iterator" in one for one in outcomes if isinstance(one, str))
        whole = [one for one in outcomes if isinstance(one, list)]
        assert whole
        assert all(one == list(range(SAMPLES)) for one in whole)


# --- work ahead ---


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (support.ROOT / "docs/per-sample.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    found = {}
    exec(program, found)
    assert (found["images"].shape, found["labels"].shape) == ((208, 32, 32), (208,))


def test_no_more_batches_are_worked_on_ahead_than_prefetch(make):
    counted = itertools.count()
    loader = make(order="sequential", workers=2, prefetch=3, transform=lambda sample: next(counted))
    most = 0
    iteration = iter(loader)
    for step, _ in enumerate(iteration):
        support.wait_until(
            lambda: not any(not one._done.is_set() for one in loader._pipeline._works), "idle threads"
        )
        begun = next(counted)
        counted = itertools.count(begun)
        # As many as the engine had ready, which is up to its threads.
        assert min(8 * (step + 1), 100) <= begun <= min(8 * (step + 1 + 3), 100)
        most = max(most, begun - 8 * (step + 1))
        support.wait_until(lambda: loader._engine.is_ready(iteration._number), "the engine")
    assert most > 0


def test_the_function_of_a_batch_runs_where_it_is_told_to(make):
    def where(batch):
        return threading.current_thread().name, len(batch.indices)

    assert {name for name, _ in make(batch_transform=where)} == {"MainThread"}
    for more in ({"workers": 1}, {"prefetch": 0}, {"transform": lambda sample: {"x": label(sample)}}):
        names = {name for name, samples in make(batch_transform=where, name="more", **more)}
        assert all(name.startswith("forebay-more-") for name in names), names


def test_options_are_reported(make, monkeypatch):
    monkeypatch.setenv("FOREBAY_WORKERS", "3")
    loader = make(transform=label, batch_transform=lambda batch: batch, prefetch=5, collate="list")
    facts = loader.config.per_sample
    assert (facts.functions, facts.workers, facts.prefetch, facts.collate) == (
        ("transform", "batch_transform"),
        3,
        5,
        "list",
    )
    assert loader.config.memory.batch_buffers == 9
    assert loader.config.strategy.batch_buffers is None
    assert "3 thread(s) call transform= and batch_transform=, up to 5 batch(es) ahead" in loader.explain()
    assert make(name="plain").config.per_sample is None
    assert make(name="of-batch", prefetch=1, batch_transform=len).config.per_sample.workers == 3
    monkeypatch.delenv("FOREBAY_WORKERS")
    assert 1 <= make(name="cores", transform=label).config.per_sample.workers <= len(os.sched_getaffinity(0))
    few = make(name="few", transform=label, strategy=forebay.Strategy(batch_buffers=3))
    assert few.config.per_sample.prefetch == 1


def test_a_user_who_keeps_views_of_every_batch_gets_private_copies_and_one_warning(make, small_records):
    loader = make(
        order="sequential", batch_size=4, workers=2, collate="list", transform=lambda sample: sample
    )
    with pytest.warns(RuntimeWarning, match="batch buffers") as found:
        kept = list(loader)
    assert len(found) == 1
    for batch in kept:
        assert [bytes(row) for row in batch["data"]] == [small_records[number] for number in batch.indices]
    assert loader.stats()["heap_batches"] > 0


def test_stacked_results_keep_no_buffer(make):
    loader = make(batch_size=4, workers=2, transform=lambda sample: sample["data"])
    kept = list(loader)
    assert len(kept) == 25
    assert loader.stats()["heap_batches"] == 0


def test_views_outlive_the_loader(make, small_records):
    loader = make(order="sequential", collate="list", transform=lambda sample: sample["data"])
    rows = next(iter(loader))
    loader.close()
    del loader
    gc.collect()
    assert bytes(rows[3]) == small_records[3]


# --- what is delivered ---


class Pair(NamedTuple):
    left: object
    right: object


def test_what_a_loader_delivers_keeps_indices_and_position(make):
    def one(how, sample):
        return next(iter(make(name=f"{how}", order="sequential", transform=sample)))

    batch = one("dict", lambda sample: {"x": label(sample)})
    assert (type(batch), batch.indices.tolist(), batch.position) == (forebay.Batch, list(range(8)), (0, 0))
    left, right = both = one("tuple", lambda sample: (label(sample), 1))
    assert (type(both), both.indices.tolist(), both.position) == (forebay.BatchTuple, list(range(8)), (0, 0))
    assert (len(left), right.tolist()) == (8, [1] * 8)
    assert type(one("named", lambda sample: Pair(1, 2))) is Pair
    assert type(one("array", label)) is np.ndarray
    loader = make(name="function", order="sequential", transform=label, collate=sum)
    assert next(iter(loader)) == int(left.sum())


def test_the_rest_of_an_epoch_is_shared_out_over_the_ranks(pool, small_lmdb):
    found = pool.run(
        4,
        short,
        path=str(small_lmdb),
        options={"batch_size": 24, "order": "sequential", "last_batch": "partial", "workers": 2},
    )
    lengths = [one[-1] for one in found]
    assert lengths == [(1, ["x"])] * 4


def short(path, options, world, pipe):
    with work.make(path, world, {**options, "transform": lambda sample: {"x": label(sample)}}) as loader:
        return [(len(batch.indices), list(batch)) for batch in loader]
