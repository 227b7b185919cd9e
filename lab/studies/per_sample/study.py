"""The sections: functions that only move data, and that compute."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from forebay_lab.bench.turns import in_turn, median_ratio, timed
from studies.harness.sections import DIRECTORY, Row, Scope, Study
from studies.per_sample import functions

BATCH = 64
# Samples that a worker of a pool gets at a time, as many as pays.
CHUNK = 16

Epoch = Callable[[], None]
Function = Callable[[Any], Any]


def data(samples: int, sample_bytes: int) -> Path:
    """Make a file of random samples."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / f"per-sample-{sample_bytes}-{samples}.raw"
    if not path.exists():
        path.write_bytes(np.random.default_rng(1).bytes(samples * sample_bytes))
    return path


@contextlib.contextmanager
def epochs(
    path: Path, sample_bytes: int, function: Function, ways: Mapping[str, Mapping[str, int]]
) -> Iterator[dict[str, Epoch]]:
    """Give a function for each way that runs an epoch."""
    with contextlib.ExitStack() as stack:

        def loader(**options: Any) -> forebay.Loader:
            dataset = forebay.open(path, format="raw", record_bytes=sample_bytes)
            made = forebay.Loader(dataset, BATCH, order="shuffle", node_memory="256MiB", **options)
            return stack.enter_context(made)

        def of_loader(one: forebay.Loader) -> None:
            for _ in one:
                pass

        def of_pool(pool: Any, plain: forebay.Loader) -> None:
            samples = ({"data": row} for batch in plain for row in batch["data"].copy())
            results = []
            for result in pool.imap(function, samples, CHUNK):
                results.append(result)
                if len(results) == BATCH:
                    np.stack(results)
                    results.clear()

        found: dict[str, Epoch] = {}
        for name, options in ways.items():
            if "pool" in options:
                pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(options["pool"]))
                found[name] = partial(of_pool, pool, loader(name=name))
            else:
                found[name] = partial(of_loader, loader(name=name, transform=function, **options))
        yield found


def moving(scope: Scope) -> list[Row]:
    """Time per sample in a thread, a process and a pool of one, for a function without work."""
    rows = []
    for sample_bytes, samples in ((3_072, 8192), (110_000, 2048)):
        samples = 256 if scope.tiny else samples
        path = data(samples, sample_bytes)
        for result_bytes in (0, 150_000):
            function = functions.Move(result_bytes)
            ways = {
                "thread": {"workers": 1},
                "process": {"workers": 1, "worker_kind": "process"},
                "pool": {"pool": 1},
            }
            with epochs(path, sample_bytes, function, ways) as found:
                times = in_turn(
                    {name: partial(timed, epoch) for name, epoch in found.items()}, scope.repetitions
                )
            micros = {name: statistics.median(one) / samples * 1e6 for name, one in times.items()}
            rows.append(
                {
                    "sample_bytes": sample_bytes,
                    "result_bytes": result_bytes,
                    **{f"{name}_us": value for name, value in micros.items()},
                    "added_us": micros["process"] - micros["thread"],
                    "pool_ratio": median_ratio(times["pool"], times["process"]),
                }
            )
    return rows


def computing(scope: Scope) -> list[Row]:
    """Rates of a function that computes 1 ms in Python alone, over one thread."""
    samples = 64 if scope.tiny else 1024
    rows = []
    for sample_bytes in (3_072, 110_000):
        path = data(samples, sample_bytes)
        ways = {
            "1 thread": {"workers": 1},
            "2 threads": {"workers": 2},
            "1 process": {"workers": 1, "worker_kind": "process"},
            "2 processes": {"workers": 2, "worker_kind": "process"},
            "pool of 2": {"pool": 2},
        }
        with epochs(path, sample_bytes, functions.compute, ways) as found:
            times = in_turn({name: partial(timed, epoch) for name, epoch in found.items()}, scope.repetitions)
        rows += [
            {
                "sample_bytes": sample_bytes,
                "way": name,
                "samples_per_second": samples / statistics.median(one),
                "speedup": median_ratio(times["1 thread"], one),
            }
            for name, one in times.items()
        ]
    return rows


STUDY = Study(sections={"moving": moving, "computing": computing}, repetitions=9)
