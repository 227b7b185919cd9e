"""Functions of samples for worker processes, which import this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

KEPT: list[Any] = []


class Pair(NamedTuple):
    """A result of two parts."""

    left: Any
    right: Any


class TwoArgumentsError(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, one, two):
        super().__init__(one)


class Tensor:
    """Looks like a tensor of torch on a CPU, as far as numpy can see."""

    def __init__(self, values, *, fails=None):
        self.values, self.fails = values, fails

    def __array__(self, dtype=None, copy=None):
        if self.fails is not None:
            raise RuntimeError(self.fails)
        return self.values if dtype is None else self.values.astype(dtype)

    def detach(self):
        return Tensor(self.values)


def number_of(rng):
    """Return the id of the sample whose generator this is."""
    return int(rng.bit_generator.state["state"]["counter"][3])


def digest(sample, rng):
    values = {name: np.frombuffer(np.asarray(value).tobytes(), np.uint8) for name, value in sample.items()}
    return {"sum": sum(int(value.sum()) for value in values.values()), "random": rng.random(2)}


def everything(sample, rng):
    """Return results of every kind, of contiguous arrays and others."""
    data = sample["data"]
    data[0] = 255  # writable
    return {
        "whole": data,
        "back": data[::-1],
        "large": np.full((300, 500), number_of(rng), np.float32)[:, ::2],
        "columns": np.asfortranarray(np.full((40, 30), number_of(rng), "<i4")),
        "none": np.zeros((0, 3), "i2"),
        "when": np.datetime64(number_of(rng), "s"),
        "record": np.array((number_of(rng), 0.5), [("a", "i4"), ("b", "f2")]),
        "text": f"sample {number_of(rng)}",
        "pair": Pair(number_of(rng), (rng.random(3), 2.5)),
    }


def views(sample):
    """Return views of the sample."""
    return {"whole": sample["data"], "back": sample["data"][::-1]}


def of_any_length(sample, rng):
    """Return arrays whose length is a square of the id times a number: up to 10 MB."""
    number = number_of(rng)
    return np.full(number * number * 128, number, np.int64)


def keep(sample, rng):
    """Keep the arrays of every third sample, and return what all that are kept contain."""
    if number_of(rng) % 3 == 0:
        KEPT.append((sample["data"], sample["data"].tobytes()))
    assert all(array.tobytes() == contents for array, contents in KEPT)
    return {"data": sample["data"], "kept": len(KEPT)}


def fail(sample, rng):
    if number_of(rng) in (18, 21, 50):
        raise KeyError(number_of(rng))
    return {"n": number_of(rng)}


def unlucky(sample, rng):
    if rng.random() < 0.2:
        raise ValueError("unlucky")
    return {"random": rng.random(), "first": sample["data"][:4]}


def fail_strangely(sample, rng):
    raise TwoArgumentsError(1, 2)


def exit_(sample, rng):
    raise SystemExit(3)


def unsendable(sample, rng):
    return {"n": number_of(rng), "f": (lambda: 1) if number_of(rng) == 5 else None}


def die(sample, rng):
    """End the process at a few samples, in several ways."""
    number = number_of(rng)
    if number == 19:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 42:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 77:
        os._exit(7)
    return {"n": number}


def leave_a_child(sample, rng):
    """Die, and leave a process behind that holds all that this one has open."""
    if number_of(rng) == 3:
        if os.fork() == 0:
            os.setsid()
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": number_of(rng)}


def pid(sample):
    return os.getpid()


def ignores_interrupts(sample):
    os.kill(os.getpid(), signal.SIGINT)
    return len(sample["data"])


def tensor(sample, rng):
    return {"x": Tensor(np.full(1000, number_of(rng)))}


def tensor_on_a_device(sample, rng):
    return {"x": Tensor(sample["data"], fails="can't convert cuda:0 device type tensor to numpy\nmore")}


def slow(sample):
    time.sleep(0.01)
    return os.getpid()


def stuck(sample):
    """Tell that it is called, and never return."""
    Path(f"called-{os.getpid()}").touch()
    while True:
        sum(range(1000))


class Scaled:
    """A function with arguments of its own."""

    def __init__(self, table):
        self.table = table

    def __call__(self, sample):
        return self.table[sample["data"]].sum()
