"""Functions of samples that raise, and wrong use."""

from __future__ import annotations

import itertools
import os
import warnings
from functools import partial

import numpy as np
import pytest

import forebay
import support
from forebay._samples.functions import parameters
from support.ranks import functions
from support.ranks.functions import label


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_comes_at_its_own_step_and_names_the_first_sample(make, threads):
    def fail(sample, rng):
        number = int(rng.bit_generator.state["state"]["counter"][3])
        if number in (21, 18, 50):
            raise KeyError(number)
        return {"n": number}

    loader = make(order="sequential", workers=threads, prefetch=4, transform=fail)
    iteration = iter(loader)
    assert next(iteration)["n"].tolist() == list(range(8))
    assert next(iteration)["n"].tolist() == list(range(8, 16))
    with pytest.raises(KeyError) as error:
        next(iteration)
    assert error.value.args == (18,)
    assert error.value.__notes__ == ["in transform= of loader 'train': sample 18, epoch 0, step 2"]
    assert loader.state_dict()["step"] == 3
    assert next(iteration)["n"].tolist() == list(range(24, 32))
    assert [batch["n"][0] for batch in itertools.islice(iteration, 2)] == [32, 40]
    with pytest.raises(KeyError):
        next(iteration)
    assert next(iteration).position.step == 7


def test_errors_of_batch_and_collate_come_at_their_own_step(make):
    def fail(batch):
        if batch.position.step == 2:
            raise ValueError("no")
        return batch.position.step

    iteration = iter(make(workers=2, transform=lambda sample: {"x": label(sample)}, batch_transform=fail))
    assert [next(iteration), next(iteration)] == [0, 1]
    with pytest.raises(ValueError, match="no") as error:
        next(iteration)
    assert error.value.__notes__ == ["in batch_transform= of loader 'train': epoch 0, step 2"]
    assert next(iteration) == 3


@pytest.mark.parametrize("name", ["sample", "collate", "batch", "batch alone", "order"])
@pytest.mark.parametrize("processes", [None, 1])
def test_a_function_that_raises_stop_iteration_does_not_end_the_epoch(make, name, processes):
    def fail(argument):
        if isinstance(argument, (list, int)) or getattr(argument, "position", (0, 1))[1] == 1:
            next(iter(()))
        return argument

    options = {
        "sample": {"transform": functions.stop_at_sample_8},
        "collate": {"transform": functions.label, "collate": fail},
        "batch": {"transform": functions.label, "collate": "list", "batch_transform": fail, "workers": 2},
        "batch alone": {"batch_transform": fail},
        "order": {"order": fail},
    }[name]
    if processes is not None:
        if name in ("batch alone", "order"):
            pytest.skip("no function that processes call")
        options |= {"workers": processes, "worker_kind": "process"}
    with (
        make(**{"order": "sequential", **options}) as loader,
        pytest.raises(RuntimeError, match="a function of the script raised StopIteration") as error,
    ):
        list(loader)
    assert isinstance(error.value.__cause__, StopIteration)
    if name == "sample":
        assert error.value.__notes__[-1] == "in transform= of loader 'train': sample 8, epoch 0, step 1"


def test_an_error_of_the_engine_comes_after_the_batches_before_it(tmp_path):
    records = [support.record(number, 500) for number in range(64)]
    path = support.write_lmdb(tmp_path / "bad.lmdb", records)
    loader = forebay.Loader(
        path, 8, order=lambda epoch: order_of(epoch), transform=label, prefetch=4, node_memory="16MiB"
    )

    def order_of(epoch):
        if epoch == 1:
            raise ArithmeticError("no order")
        return np.arange(64)

    with loader:
        assert len(list(loader)) == 8
        with pytest.raises(ArithmeticError):
            next(iter(loader))
    # A file that is cut while it is read: each batch before the cut arrives.
    big = tmp_path / "x.raw"
    big.write_bytes(bytes(8) * (1 << 19))
    dataset = forebay.open(big, format="raw", record_bytes=1 << 16)
    with forebay.Loader(
        dataset,
        4,
        order="sequential",
        transform=lambda sample: sample["data"][0],
        prefetch=3,
        strategy="pread",
        node_memory="16MiB",
    ) as loader:
        os.truncate(big, 1 << 16)
        steps = []
        with pytest.raises(forebay.StorageError):
            steps.extend(loader)
        assert loader.state_dict()["step"] == len(steps)


def test_with_skip_a_sample_that_fails_is_replaced_by_the_one_before_it(make, says):
    def fail(sample, rng):
        number = int(rng.bit_generator.state["state"]["counter"][3])
        if number in (0, 17, 18, 99):
            raise ValueError(f"broken {number}")
        return {"n": number, "data": sample["data"]}

    loader = make(order="sequential", workers=3, bad_samples="skip", transform=fail)
    with says(RuntimeWarning, 0):
        batches = list(loader)
    flat = [number for batch in batches for number in batch.indices.tolist()]
    replaced = {0: 98, 17: 16, 18: 16, 99: 98}
    assert flat == [replaced.get(number, number) for number in range(100)]
    plain = {
        number: bytes(row)
        for batch in make(name="plain")
        for number, row in zip(batch.indices.tolist(), batch["data"], strict=True)
    }
    for batch in batches:
        assert batch["n"].tolist() == batch.indices.tolist()
        for number, row in zip(batch.indices.tolist(), batch["data"], strict=True):
            assert bytes(row) == plain[number]
    assert loader.stats()["replaced_samples"] == 4
    assert dict(loader.bad_samples()) == {
        number: f"transform= raised ValueError: broken {number}" for number in replaced
    }
    loader.close()
    assert len(loader.bad_samples()) == 4


def test_a_function_that_always_fails_is_an_error_with_skip_too(make, says):
    def fail(sample):
        raise ValueError("broken")

    loader = make(order="sequential", bad_samples="skip", transform=fail)
    with warnings.catch_warnings(), says(forebay.ForebayError, 63, "broken"):
        warnings.simplefilter("ignore")
        next(iter(loader))


@pytest.mark.parametrize(
    "arguments",
    [
        {"transform": 3},
        {"batch_transform": "stack"},
        {"transform": label, "workers": 0},
        {"transform": label, "workers": True},
        {"transform": label, "workers": 1025},
        {"transform": label, "prefetch": -1},
        {"transform": label, "prefetch": 1.5},
        {"transform": label, "collate": "zip"},
        {"workers": 2},
        {"prefetch": 2},
        {"collate": "list"},
        {"batch_transform": len, "collate": "list"},
        {"decode": len},
        {"transform": lambda: 1},
        {"transform": lambda a, b, c: 1},
        {"transform": lambda a, *, size: 1},
    ],
)
def test_wrong_use_is_told_when_the_loader_is_made(make, arguments, says):
    with says(forebay.OptionError, f"{list(arguments)[-1]}="):
        make(**arguments)


class Flip:
    def __call__(self, sample, rng=None):
        pass


@pytest.mark.parametrize(
    ("function", "way"),
    [
        (lambda sample: 1, "sample"),
        (lambda sample, rng: 1, "sample, rng"),
        (lambda sample, generator: 1, "sample, rng"),
        (lambda sample, rng=None: 1, "sample, rng"),
        (lambda sample, size=3: 1, "sample"),
        (lambda sample, size=3, rng=None: 1, "sample, rng="),
        (lambda sample, *, rng: 1, "sample, rng="),
        (lambda sample, *, rng=None: 1, "sample, rng="),
        (lambda *sample, **rng: 1, "sample"),
        (lambda rng: 1, "sample"),
        (partial(lambda size, sample, rng: 1, 3), "sample, rng"),
        (partial(lambda sample, size, rng: 1, size=3), "sample, rng="),
        (Flip(), "sample, rng"),
        (functions.digest, "sample, rng"),
        (dict, "sample"),
        (len, "sample"),
    ],
)
def test_a_function_gets_random_numbers_if_it_takes_them(function, way):
    assert parameters(function) == way
