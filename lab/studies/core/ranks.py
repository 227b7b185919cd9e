"""Four ranks on one node: bytes fetched for the bytes delivered, memory, and later epochs.

The ranks are plain processes (`multiprocessing`, spawned) that know their place by `forebay.World`.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from forebay_lab.bench.turns import in_turn, quartiles, timed
from forebay_lab.ranks import page_cache
from forebay_lab.ranks.memory import anonymous_bytes
from forebay_lab.ranks.rusage import transfers
from studies.core.row import WARM_UPS, Outcome, Row, rate, ratio
from studies.harness import datasets
from studies.harness.sections import Scope, SkipError

RANKS = 4
ORDERS = ("sequential", "group", "shuffle")
MEMORY = "160MiB"
"""Slightly more than the least of the group order, so that it reserves nearly the whole budget."""
EPOCHS = 12
"""Until planning has ended: planners are ahead, and believe what they found for a second."""


@dataclass(frozen=True)
class Plan:
    """What a rank does."""

    dataset: datasets.Set
    order: str
    batch: int
    memory: str | None
    job: str


@contextmanager
def _ranks(plan: Plan) -> Iterator[list[Any]]:
    """Started ranks, as the parent's ends of their pipes: each obeys words and answers."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(RANKS):
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(theirs, plan, rank))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(timeout=30)
            if process.is_alive():
                process.kill()


def _together(pipes: list[Any], word: str) -> list[Any]:
    """All ranks' answers to one word."""
    for pipe in pipes:
        pipe.send(word)
    answers = [pipe.recv() for pipe in pipes]
    for answer in answers:
        if isinstance(answer, str):
            raise RuntimeError(answer)
    return answers


def _rank(pipe: Any, plan: Plan, rank: int) -> None:
    """Import what a training script imports, then do what the parent says, until it hangs up."""
    import forebay

    loader: Any = None
    batches: Any = None
    try:
        while True:
            word = pipe.recv()
            try:
                if word == "make":
                    source = forebay.open(plan.dataset.path, schema="raw")
                    world = forebay.World(
                        rank=rank, size=RANKS, local_rank=rank, local_size=RANKS, node=0, job=plan.job
                    )
                    loader = forebay.Loader(
                        source, batch_size=plan.batch, order=plan.order, node_memory=plan.memory, world=world,
                        name="bench", seed=1,
                    )  # fmt: skip
                    batches = iter(loader)
                    pipe.send((len(loader), loader.config.memory))
                elif word == "epoch":
                    samples = sum(len(batch.indices) for batch in batches)
                    batches = iter(loader)
                    pipe.send((samples, loader.config))
                elif word == "half":
                    for _ in range(len(loader) // 2):
                        next(batches)
                    pipe.send(None)
                elif word == "counters":
                    pipe.send(transfers().storage_bytes)
                elif word == "memory":
                    pipe.send(anonymous_bytes())
            except Exception as error:
                pipe.send(f"rank {rank}: {type(error).__name__}: {error}")
    except EOFError:
        pass
    finally:
        batches = None
        if loader is not None:
            loader.close()


def bytes_fetched(scope: Scope) -> Outcome:
    """The worst of the orders and datasets; the others are in the parts."""
    import forebay

    ratios: dict[str, float] = {}
    parts = []
    for dataset, batch in ((datasets.small(scope), 64), (datasets.large(scope), 8)):
        len(forebay.open(dataset.path, schema="raw"))  # The sidecar is there from now on.
        for order in ORDERS:
            plan = Plan(dataset, order, batch, None, f"bytes-{order}-{os.getpid()}")
            page_cache.drop(dataset.file)
            with _ranks(plan) as pipes:
                before = _together(pipes, "counters")
                _together(pipes, "make")
                _together(pipes, "epoch")
                after = _together(pipes, "counters")
            fetched = sum(after) - sum(before)
            name = f"{dataset.record_bytes:,} B, {order}"
            ratios[name] = fetched / dataset.page_bytes
            parts.append((name, f"{ratios[name]:.4f}"))
    worst = max(ratios.values())
    return Outcome(worst, min(ratios.values()), worst, tuple(parts))


def memory(scope: Scope) -> Outcome:
    """Largest of the datasets, per process, over the budget."""
    import forebay

    figures, parts = [], []
    for dataset, batch in ((datasets.small(scope), 64), (datasets.large(scope), 8)):
        len(forebay.open(dataset.path, schema="raw"))
        page_cache.drop(dataset.file)  # Cold, so that staging blocks are filled; resident samples need none.
        plan = Plan(dataset, "group", batch, MEMORY, f"memory-{dataset.record_bytes}-{os.getpid()}")
        with _ranks(plan) as pipes:
            bare = sum(_together(pipes, "memory"))
            memory = _together(pipes, "make")[0][1]
            _together(pipes, "half")
            readings = []
            for _ in range(max(scope.repetitions, 3)):
                time.sleep(0.1)
                readings.append(sum(_together(pipes, "memory")))
            budget, region = memory.budget_bytes, memory.region_bytes
            _together(pipes, "epoch")
            readings.append(sum(_together(pipes, "memory")))
        over_budget = [(reading - bare - budget) / RANKS / 1e6 for reading in readings]
        over_region = [(reading - bare - region) / RANKS / 1e6 for reading in readings]
        figures.append(quartiles(over_budget))
        parts.append(
            (
                f"{dataset.record_bytes:,} B",
                f"{max(readings) / 1e6:,.0f} MB in {RANKS} processes, {bare / 1e6:,.0f} MB of it before the loader; "
                f"budget {budget / 1e6:,.0f} MB, of which {region / 1e6:,.0f} MB reserved; "
                f"{max(over_region):,.1f} MB per process over what is reserved",
            )
        )
    middle, low, high = max(figures)
    return Outcome(middle, low, high, tuple(parts))


def later_epochs(scope: Scope) -> Outcome:
    """Epochs from the page cache, of a loader that was made before the file was there."""
    import forebay

    dataset = datasets.small(scope)
    len(forebay.open(dataset.path, schema="raw"))
    plans = [Plan(dataset, "group", 256, MEMORY, f"{when}-{os.getpid()}") for when in ("cold", "warm")]
    page_cache.drop(dataset.file)
    with _ranks(plans[0]) as cold:
        _together(cold, "make")
        for epoch in range(EPOCHS):
            config = _together(cold, "epoch")[0][1]
            mapped = config.now.mapped_from_epoch
            if config.reading.io_mode != "planned" or (mapped is not None and mapped <= epoch):
                break
            time.sleep(1)
        if config.reading.io_mode != "planned" or mapped is None:
            raise SkipError("the file was not dropped from the page cache, or did not stay in it")
        with _ranks(plans[1]) as warm:
            _together(warm, "make")
            if _together(warm, "epoch")[0][1].reading.io_mode != "mapped":
                raise SkipError("the file is not in the page cache")
            ours, theirs = (partial(timed, partial(_together, pipes, "epoch")) for pipes in (cold, warm))
            times = in_turn({"ours": ours, "theirs": theirs}, scope.repetitions, WARM_UPS)
    moved = dataset.samples * dataset.record_bytes
    parts = (("made cold", rate(moved, times["ours"])), ("made warm", rate(moved, times["theirs"])))
    return Outcome(*ratio(times["ours"], times["theirs"]), parts)


ROWS = (
    Row(
        "ranks-bytes", "4 ranks, one cold epoch: bytes from storage", "bytes of the pages that hold delivered records",
        1.02, False, "×", bytes_fetched,
    ),
    Row(
        "memory", "4 ranks: memory per process over the budget, less a bare interpreter", "PSS without clean file pages",
        100.0, False, "MB", memory,
    ),
    Row(
        "ranks-later", "4 ranks, group order, 256 x 3,073 B: warm epochs after a cold one",
        "a loader that was made warm",
        0.9, True, "×", later_epochs,
    ),
)  # fmt: skip
