"""Batches that a thread copies ahead of the script: the script notices nothing of it."""

from __future__ import annotations

import gc
import os
import sys
import threading

import numpy as np
import pytest
import torch

import forebay
import forebay.torch
import support
from frameworks.torch_support import (
    BATCH,
    SAMPLES,
    STEPS,
    Clones,
    copying,
    epochs_of,
    ids_of,
    plain_loader,
    prepare,
    write_samples,
)


@pytest.fixture
def samples(tmp_path):
    return write_samples(tmp_path / "samples.npz")


@pytest.fixture
def plain(samples):
    with plain_loader(samples) as plain:
        yield plain


@pytest.fixture
def transfer():
    return Clones()


@pytest.fixture
def loader(samples, transfer):
    with copying(plain_loader(samples, name="copied"), transfer) as loader:
        yield loader


def threads():
    return [one for one in threading.enumerate() if one.name.startswith("forebay-copied-copies")]


def test_epochs_are_those_of_the_loader(plain, loader, transfer):
    assert epochs_of(loader, 3) == epochs_of(plain, 3)
    # Of each epoch, no more than its batches; its end is no batch.
    assert transfer.begun == transfer.taken == 3 * STEPS
    assert len(threads()) == 1
    loader.close()
    assert threads() == []


def test_values_are_copies_whose_batch_buffers_are_free(loader):
    kept = [batch for _ in range(3) for batch in loader]
    for batch in kept:
        assert batch["image"][:, 0, 0].tolist() == batch.indices.tolist()
    assert loader.loader.stats()["heap_batches"] == 0


def test_the_position_is_that_of_the_script_at_each_step(plain, loader):
    for _ in range(2):
        for expected, batch in zip(plain, loader, strict=True):
            assert batch.position == expected.position
            assert loader.state_dict() == loader.state_at(batch.position) == plain.state_at(expected.position)
            assert loader.epoch == expected.position.epoch
        assert loader.state_dict() == plain.state_dict()
        assert loader.epoch == plain.epoch


@pytest.mark.parametrize("step", [1, 5, STEPS - 1, STEPS])
def test_an_epoch_that_is_broken_off_is_followed_by_the_next(plain, loader, step):
    expected = epochs_of(plain, 2)
    iterator = iter(loader)
    assert [ids_of(next(iterator)) for _ in range(step)] == expected[0][:step]
    state = loader.state_dict()
    assert state == plain.state_at((0, step - 1))
    del iterator
    gc.collect()
    assert loader.state_dict() == state
    assert epochs_of(loader, 1) == expected[1:]


@pytest.mark.parametrize("step", [1, 5, STEPS - 1, STEPS])
@pytest.mark.parametrize("epoch", [0, 1, 4])
def test_set_epoch_moves_to_the_start_of_an_epoch_wherever_copies_have_come(plain, loader, step, epoch):
    iterator, of_plain = iter(loader), iter(plain)
    for _ in range(step):
        next(iterator), next(of_plain)
    for one in (loader, plain):
        one.set_epoch(epoch)
    assert loader.state_dict() == plain.state_dict()
    assert loader.epoch == plain.epoch == epoch
    for stale in (iterator, of_plain):
        with pytest.raises(forebay.ForebayError, match="stale iterator"):
            next(stale)
    assert epochs_of(loader, 2) == epochs_of(plain, 2)


def test_set_epoch_keeps_a_restored_position(plain, loader):
    expected = epochs_of(plain, 2)
    loader.load_state_dict(plain.state_at((1, 4)))
    loader.set_epoch(1)
    assert epochs_of(loader, 1) == [expected[1][5:]]


def test_a_state_is_loaded_in_the_middle_of_an_epoch(plain, loader):
    expected = epochs_of(plain, 2)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(plain.state_at((0, 6)))
    with pytest.raises(forebay.ForebayError, match="stale iterator"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert epochs_of(loader, 2) == [expected[0][7:], expected[1]]


def test_a_second_iterator_makes_the_first_one_stale(plain, loader):
    expected = epochs_of(plain, 2)
    first, second = iter(loader), iter(loader)
    assert ids_of(next(first)) == expected[0][0]
    assert [ids_of(batch) for batch in second] == expected[1]
    with pytest.raises(forebay.ForebayError, match="stale iterator"):
        next(first)


def test_after_close_an_iterator_says_that_the_loader_is_closed(loader):
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(forebay.ForebayError, match=r"stale iterator|closed"):
        next(iterator)
    with pytest.raises(forebay.ForebayError, match="closed"):
        iter(loader)


def test_errors_come_at_their_step_and_the_next_batch_follows(samples, transfer):
    def broken(sample):
        if sample["image"][0, 0] in {20, 30}:
            raise ValueError("no image")
        return sample["label"], sample["image"]

    # One function fails at steps 2 and 3, one copy at step 5; steps 2 and 3 are not copied.
    transfer.fail_at = 3
    loader = plain_loader(samples, order="sequential", transform=broken)
    found = []
    with copying(loader, transfer) as batches:
        iterator = iter(batches)
        while True:
            try:
                found.append(ids_of(next(iterator))[0] // BATCH)
            except StopIteration:
                break
            except (ValueError, RuntimeError) as error:
                found.append(str(error))
            assert batches.state_dict()["step"] == len(found)
    assert found == [0, 1, "no image", "no image", 4, "out of memory", *range(6, STEPS)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_of_the_engine_is_raised_after_the_batches_before_it(samples, transfer):
    with copying(plain_loader(samples, order=lambda epoch: np.arange(SAMPLES - epoch)), transfer) as batches:
        assert len(epochs_of(batches, 1)[0]) == STEPS
        for _ in range(2):
            with pytest.raises(forebay.OptionError, match="epoch 1"):
                next(iter(batches))


def test_an_interrupt_loses_no_batch(plain, loader, monkeypatch):
    from forebay.torch import _ahead

    expected = epochs_of(plain, 1)[0]
    really, found = _ahead._Copying.wait, []

    def interrupted(work):
        really(work)
        if len(found) == 4 and not interrupts:
            interrupts.append(True)
            raise KeyboardInterrupt

    interrupts: list[bool] = []
    monkeypatch.setattr(_ahead._Copying, "wait", interrupted)
    iterator = iter(loader)
    while len(found) < STEPS:
        try:
            found.append(ids_of(next(iterator)))
        except KeyboardInterrupt:
            assert loader.state_dict()["step"] == 4
    assert interrupts
    assert found == expected


AT_EXIT = """
import sys
import forebay
from frameworks.torch_support import copying, plain_loader
loader = copying(plain_loader(sys.argv[1], transform=lambda sample: sample["label"]))
iterator = iter(loader)
next(iterator)
"""


def test_python_exits_with_an_iterator_that_still_copies(samples):
    path = os.pathsep.join((str(support.ROOT / "tests"), *sys.path[1:]))
    done = support.run_python(AT_EXIT, samples, environment={"PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (0, "")


# --- pinned memory and CUDA ---

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: torch.cuda.is_available() is False"
)


@needs_cuda
@pytest.mark.parametrize(
    "options", [{"device": "cuda"}, {"device": "cuda", "pin_memory": False}, {}], ids=str
)
def test_on_the_device_batches_are_those_of_the_host_over_1000_steps(samples, options):
    steps, digests, expected = 1000, [], []
    with plain_loader(samples, transform=prepare) as plain:
        while len(expected) < steps:
            expected += [(float(images.sum(dtype=np.float64)), labels.tolist()) for images, labels in plain]
    with forebay.torch.loader(plain_loader(samples, transform=prepare, name="cuda"), **options) as loader:
        while len(digests) < steps:
            for images, labels in loader:
                assert images.is_cuda or images.is_pinned()
                # On the script's stream, beside the copies of the next batches.
                digests.append((images.double().sum(), labels))
    for (found, labels), (wanted, of_host) in zip(digests, expected, strict=True):
        assert labels.tolist() == of_host
        assert found.item() == pytest.approx(wanted, rel=1e-9)


@needs_cuda
def test_on_the_device_many_small_tensors_share_an_allocation(tmp_path):
    records = [support.record(number, 10 + number) for number in range(64)]
    path = support.write_lmdb(tmp_path / "records", records)
    with forebay.torch.loader(path, 32, order="sequential", node_memory="16MiB", device="cuda") as loader:
        found = [one for batch in loader for one in batch["data"]]
    assert [bytes(one.cpu().numpy()) for one in found] == records
    assert len({one.untyped_storage().data_ptr() for one in found}) <= 2
