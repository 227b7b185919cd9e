"""What ranks do in tests: each function runs in a process of :mod:`ranks.pool`."""

from __future__ import annotations

import functools
import gc
import os
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import forebay

MEMORY = "32MiB"


@functools.cache
def records(path: str) -> list[bytes]:
    """All records of a database, as py-lmdb reads them."""
    import lmdb

    with lmdb.open(path, readonly=True, lock=False, subdir=os.path.isdir(path)) as environment:  # noqa: PTH112
        with environment.begin() as transaction:
            return [bytes(value) for value in transaction.cursor().iternext(keys=False)]


def make(path: str, world: Mapping[str, Any], options: Mapping[str, Any]) -> forebay.Loader:
    """Make a loader; ``group`` and ``strategy`` are arguments of their classes, ``given`` is a seed of a given order."""
    options = {"memory": MEMORY, **options}
    if (group := options.pop("group", None)) is not None:
        options["order"] = forebay.Group(**group)
    if isinstance(options.get("strategy"), dict):
        options["strategy"] = forebay.Strategy(**options["strategy"])
    if (given := options.pop("given", None)) is not None:
        samples = len(records(path))
        options["order"] = lambda epoch: given_ids(samples, given, epoch)
    return forebay.Loader(path, world=forebay.World(**world), **options)


def given_ids(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch that tests give."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def check(path: str, batch: Any) -> list[int]:
    """Compare the bytes of a batch with py-lmdb's and return its ids."""
    ids = [int(number) for number in batch.indices]
    expected = records(path)
    assert len(batch["data"]) == len(ids)
    for row, number in zip(batch["data"], ids, strict=True):
        assert row.tobytes() == expected[number], f"sample {number} has wrong bytes"
    return ids


def deliver(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    epochs: int = 1,
    state: Mapping[str, Any] | None = None,
    stop: int | None = None,
) -> dict[str, Any]:
    """Go through epochs and return the ids of each step, and what the loader says of itself.

    With ``stop``, break off after that many steps in all and return the state.
    """
    with make(path, world, options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found: list[list[list[int]]] = []
        left = stop
        for _ in range(epochs):
            found.append([])
            if left == 0:
                break
            for batch in loader:
                found[-1].append(check(path, batch))
                if left is not None:
                    left -= 1
                    if left == 0:
                        break
            if left == 0:
                break
        return {
            "found": found,
            "state": loader.state_dict(),
            "steps": len(loader),
            "facts": dict(loader.facts),
            "stats": loader.stats(),
        }


def act(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    actions: Sequence[Mapping[str, Any]],
    rest: bool = False,
) -> list[list[Any]]:
    """Play a script of passes; return (epoch, first step, ids by step) of each.

    An action may have ``epoch`` (set_epoch), ``stop`` (break after so many steps), ``keep`` (hold the last so many batches),
    ``pause`` (seconds between steps), ``drop`` (let go of what is held at the end). With ``rest``, wait at the end until told to go.
    """
    passes = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batch buffers of this rank are still in use.*")
        with make(path, world, options) as loader:
            kept: list[Any] = []
            for action in actions:
                if action.get("epoch") is not None:
                    loader.set_epoch(action["epoch"])
                steps: list[list[int]] = []
                iteration = iter(loader)
                begun = loader.state_dict()
                for batch in iteration:
                    steps.append(check(path, batch))
                    kept.append(batch)
                    del kept[: len(kept) - action.get("keep", 0)]
                    if action.get("pause"):
                        time.sleep(action["pause"])
                    if len(steps) == action.get("stop"):
                        break
                del iteration
                batch = None
                for one in kept:
                    check(path, one)
                if action.get("drop"):
                    kept.clear()
                passes.append([begun["epoch"], begun["step"], steps])
            if rest:
                pipe.send("resting")
                pipe.recv()
    for one in kept:
        check(path, one)
    return passes


def made(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> dict[str, Any]:
    """Make a loader, close it, and return what it decided."""
    with make(path, world, options) as loader:
        return dict(loader.facts)
