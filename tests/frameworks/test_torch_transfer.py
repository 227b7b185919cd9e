"""What copies to a CUDA device ask of torch, in which order; recorded without a device."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import torch

from forebay.torch import _loader
from forebay.torch._tensors import Tensors
from forebay.torch._transfer import CudaCopies, PinnedCopies

# In place of a CUDA device: tensors there have a place of their own, and no values.
DEVICE = torch.device("meta")
BATCH = {
    "image": np.ones((2, 3), np.float32),
    "names": ["a", "b"],
    "ragged": [np.arange(2), np.arange(3)],
    "mixed": [np.arange(2), np.zeros(2, np.float32)],
    "label": torch.arange(2),
}


@pytest.fixture
def calls(monkeypatch):
    """Replace the functions of torch that need a device; return what they were called with."""
    calls = []

    @contextlib.contextmanager
    def within(name, value):
        calls.append(f"enter {name} {value}")
        yield
        calls.append(f"leave {name} {value}")

    class Stream:
        def __init__(self, name="copies"):
            self.name = name

        def __str__(self):
            return self.name

        def wait_event(self, event):
            calls.append(f"{self} waits for {event}")

    class Event:
        def record(self):
            calls.append("record the event")

        def __str__(self):
            return "the event"

    really_to, really_empty = torch.Tensor.to, torch.empty

    def to(tensor, device, *, non_blocking):
        calls.append(f"send {tuple(tensor.shape)}, non_blocking={non_blocking}")
        return really_to(tensor, device)

    def pin(tensor):
        calls.append(f"pin {tuple(tensor.shape)}")
        return tensor.clone()

    def empty(size, *, dtype, pin_memory):
        calls.append(f"allocate {size}, pinned={pin_memory}")
        return really_empty(size, dtype=dtype)

    monkeypatch.setattr(torch.cuda, "device", lambda device: within("device", device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: within("stream", stream))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("script"))
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: calls.append(
        f"{tuple(tensor.shape)} is used by {stream}"))  # fmt: skip
    monkeypatch.setattr(torch, "empty", empty)
    return calls


def copied(transfer):
    with transfer.begin() as copies:
        batch = Tensors().batch_by(BATCH, copies)
    return batch, copies


def test_copies_run_on_a_stream_of_their_own_for_which_the_script_waits(calls):
    transfer = CudaCopies(DEVICE, pins=True)
    batch, copies = copied(transfer)
    assert calls == [
        "enter device meta",
        "enter stream copies",
        "pin (2, 3)",
        "send (2, 3), non_blocking=True",
        # Arrays of one dtype are joined.
        "allocate 5, pinned=True",
        "send (5,), non_blocking=True",
        "pin (2,)",
        "send (2,), non_blocking=True",
        "pin (2,)",
        "send (2,), non_blocking=True",
        "pin (2,)",
        "send (2,), non_blocking=True",
        "record the event",
        "leave stream copies",
        "leave device meta",
    ]
    calls.clear()
    transfer.take(copies)
    # Each allocation is kept for the script's stream.
    assert calls == [
        "script waits for the event",
        *(f"{shape} is used by script" for shape in ("(2, 3)", "(5,)", "(2,)", "(2,)", "(2,)")),
    ]
    assert batch["names"] == ["a", "b"]
    assert [tuple(one.shape) for one in batch["ragged"]] == [(2,), (3,)]
    tensors = [batch["image"], *batch["ragged"], *batch["mixed"], batch["label"]]
    assert all(one.is_meta for one in tensors)


def test_without_pinned_memory_each_copy_blocks(calls):
    copied(CudaCopies(DEVICE, pins=False))
    assert not [
        call for call in calls if "pin (" in call or "pinned=True" in call or "non_blocking=True" in call
    ]
    assert len([call for call in calls if call.startswith("send")]) == 5


def test_pinned_copies_have_the_values_and_share_nothing_with_the_batch(calls):
    transfer = PinnedCopies(DEVICE)
    batch, copies = copied(transfer)
    transfer.take(copies)
    pins = ["pin (2, 3)", "allocate 5, pinned=True", "pin (2,)", "pin (2,)", "pin (2,)"]
    assert calls == ["enter device meta", *pins, "leave device meta"]
    assert batch["image"].tolist() == BATCH["image"].tolist()
    assert [one.tolist() for one in batch["ragged"]] == [[0, 1], [0, 1, 2]]
    assert batch["image"].data_ptr() != BATCH["image"].ctypes.data


@pytest.mark.parametrize(("local_rank", "devices", "warns"), [(1, 2, True), (0, 2, False), (1, 1, False)])
def test_a_rank_whose_current_device_is_that_of_another_is_warned(monkeypatch, local_rank, devices, warns):
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert os.environ["LOCAL_RANK"]
    context = (
        pytest.warns(RuntimeWarning, match=r"torch.cuda.set_device\(1\)")
        if warns
        else contextlib.nullcontext()
    )
    with context:
        assert _loader._numbered(torch.device("cuda")) == torch.device("cuda", 0)
    assert _loader._numbered(torch.device("cuda", 1)) == torch.device("cuda", 1)
