"""One rank of one run, started by MPI's launcher or by `forebay_lab.bench.processes`.

A timed run, in order: all ranks meet; the source is opened and the first batch got (start-up); all
meet again, and from there on the wall is counted. Each step is a batch, compute (sleep until an
absolute deadline, as DLIO and MLPerf Storage do), and a barrier, which stands for the sum of
gradients. Three time stamps per step are kept, of the monotonic clock, which all ranks of a machine
share: batch got, arrived at the barrier, together. What they mean is worked out afterwards
(`forebay_lab.bench.timing`).

A verification run is the same without compute and without stamps that anybody looks at; it keeps
the id and a digest of every sample instead. Digests are not taken in timed runs: they would cost
what the runs measure.

A rank writes two files into the directory of the run: `rank-N.json` and `rank-N.npz`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from forebay._core import ForebayError
from forebay_lab.bench import baselines
from forebay_lab.bench.baselines import Place, Source
from forebay_lab.bench.engine import Engine
from forebay_lab.bench.verify import Digests
from forebay_lab.ranks.barrier import Barrier, MpiBarrier, SocketBarrier
from forebay_lab.ranks.launch import PROGRESS_MARK
from forebay_lab.ranks.rusage import Transfers, Usage, process_usage, thread_usage, transfers

PROGRESS_EVERY_S = 0.25

Opener = Callable[[Place], Source]
Result = tuple[dict[str, Any], dict[str, Any]]
"""What becomes the rank's JSON, and its arrays."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser(prog="forebay_lab.bench.rank", description="One rank of the bench.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--rank", type=int, help="started as a plain process")
    parser.add_argument("--barrier", type=int, help="descriptor of the socket where the ranks meet")
    options = parser.parse_args(arguments)
    run = json.loads(options.run.read_text("utf-8"))
    barrier: Barrier
    if options.rank is None:
        barrier = MpiBarrier(run["deadline_s"])
    else:
        barrier = SocketBarrier(options.barrier, options.rank, run["ranks"], run["deadline_s"])
    if barrier.size != run["ranks"]:
        sys.exit(f"bench: expected {run['ranks']} ranks, found {barrier.size}")
    place = _place(run, barrier.rank)
    try:
        measured, arrays = (_verify if run["verify"] else _measure)(
            run, place, barrier, _source(run, barrier)
        )
    except ForebayError as error:
        # Its message says it all; a traceback per rank would bury it.
        sys.exit(f"bench: rank {barrier.rank}: {type(error).__name__}: {error}")
    except Exception as error:
        # A program of the user's, mostly: where it failed, and then, so that no launcher's words
        # bury it, with what.
        traceback.print_exc()
        told = traceback.format_exception_only(error)[-1].strip()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        sys.exit(f"bench: rank {barrier.rank}: {told} ({frame.filename}, line {frame.lineno})")
    files = Path(run["directory"], f"rank-{barrier.rank}")
    np.savez(files.with_suffix(".npz"), **arrays)
    files.with_suffix(".json").write_text(json.dumps(measured), encoding="utf-8")


def _place(run: dict[str, Any], rank: int) -> Place:
    node = next(number for number, ranks in enumerate(run["nodes"]) if rank in ranks)
    scratch = Path(run["directory"], f"scratch-{rank}")
    scratch.mkdir()
    return Place(
        paths=tuple(run["paths"][node]),
        samples=run["samples"],
        batch_size=run["batch_size"],
        rank=rank,
        ranks=run["world_ranks"],
        node=node,
        local_rank=run["nodes"][node].index(rank),
        local_ranks=len(run["nodes"][node]),
        seed=run["seed"],
        scratch=scratch,
        job=run["job"],
    )


def _source(run: dict[str, Any], barrier: Barrier) -> Opener:
    """Return what opens the source of a rank, with all that it imports imported."""
    if not run["baseline"]:
        # The engine gets what a training script would give it: MPI's world, where the job is all
        # there.
        whole = len(run["nodes"]) > 1 and run["world_ranks"] == run["ranks"]
        comm = barrier.comm if whole and isinstance(barrier, MpiBarrier) else None
        return partial(Engine, strategy=run["strategy"], order=run["order"], epochs=run["epochs"], comm=comm)
    baseline = baselines.find(run["baseline_files"])[run["strategy"]]
    baseline.load()
    return baseline.open


def _verify(run: dict[str, Any], place: Place, barrier: Barrier, source_of: Opener) -> Result:
    digests, progress = Digests(), _Progress(barrier.rank)
    barrier.wait("the start")
    source = source_of(place)
    for epoch in range(run["epochs"]):
        for step, (ids, records) in enumerate(source.epoch(epoch)):
            digests.add_step(ids, records)
            progress.tell()
            barrier.wait(f"step {step} of epoch {epoch}")
            if step + 1 == run["steps"]:
                break
        digests.end_epoch()
    source.close()
    return {"rank": place.rank}, digests.arrays()


def _measure(run: dict[str, Any], place: Place, barrier: Barrier, source_of: Opener) -> Result:
    clock = time.perf_counter_ns
    compute_ns = round(run["compute_seconds"] * 1e9)
    progress = _Progress(barrier.rank)
    counters = _Counters(run["counters"] if barrier.rank == 0 else None)
    got: list[int] = []
    arrived: list[int] = []
    together: list[int] = []
    sizes: list[int] = []
    samples: list[int] = []
    numbers: list[Any] = []
    epochs: list[int] = []
    busy: list[tuple[Usage, Usage]] = []
    levels: list[dict[str, int] | None] = []
    ready = 0
    barrier.wait("the start")
    process_before, transfers_before = process_usage(), transfers()
    begin = clock()
    source = source_of(place)
    for epoch in range(run["epochs"]):
        epochs.append(len(got))
        for step, (ids, records) in enumerate(source.epoch(epoch)):
            now = clock()
            mark = thread_usage()
            got.append(now)
            if not ready:
                barrier.wait("the first batch")
                ready = now = clock()
            samples.append(len(ids))
            numbers.append(ids)
            sizes.append(_size(records))
            _sleep_until(now + compute_ns)
            arrived.append(clock())
            barrier.wait(f"step {step} of epoch {epoch}")
            progress.tell()
            busy.append((mark, thread_usage()))
            together.append(clock())
            if step + 1 == run["steps"]:
                break
        counters.take()
        if isinstance(source, Engine):
            levels.append(source.level_bytes(epoch))
        if run["counters"] is not None and epoch + 1 < run["epochs"]:
            # No rank reads for the next epoch before rank 0 has taken the counters of this one.
            barrier.wait(f"the counters of epoch {epoch}")
    finished = clock()
    usage = process_usage() - process_before
    for before, after in busy:
        usage -= after - before
    measured = {
        "rank": place.rank,
        "node": place.node,
        "usage": dataclasses.asdict(usage),
        "counters": counters.taken,
        "levels": levels,
        **_read(transfers() - transfers_before, source.facts(), place),
    }
    source.close()
    arrays = {
        "marks": np.array([begin, ready, finished]),
        "got": np.array(got),
        "arrived": np.array(arrived),
        "together": np.array(together),
        "sizes": np.array(sizes),
        "samples": np.array(samples),
        "ids": np.concatenate(numbers).astype(np.int64),
        "epochs": np.array(epochs),
    }
    return measured, arrays


def _read(done: Transfers, facts: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return what was read: from the loader if it reports that, else from the kernel's counters."""
    stats = facts.get("stats")
    if stats is None:
        return {
            "reads": done.read_calls,
            "read_bytes": done.read_call_bytes,
            "storage_bytes": done.storage_bytes,
            "mmap_bytes": 0,
            "messages": None,
            "guesses": None,
            "reader": None,
            "explain": "",
            "shuffle_quality": None,
            "tiers": None,
        }
    return {
        "reads": stats["reads"],
        "read_bytes": stats["read_bytes"],
        "storage_bytes": done.storage_bytes,
        "mmap_bytes": stats["mmap_bytes"],
        "messages": stats.get("messages_sent"),
        "guesses": [stats.get("guess_hits", 0), stats.get("guess_misses", 0)],
        "reader": {
            "threads": _readers_of_rank(facts["readers"], place),
            "locate_seconds": stats["locate_seconds"],
            "read_seconds": stats["read_seconds"],
            "decode_seconds": stats["decode_seconds"] - stats["field_decode_seconds"],
            "gather_seconds": stats["gather_seconds"],
            "reader_idle_seconds": stats["reader_idle_seconds"],
        },
        "explain": facts["explain"],
        "shuffle_quality": facts["shuffle_quality"],
        "tiers": facts["tiers"],
    }


def _readers_of_rank(readers: int, place: Place) -> int:
    """Return a rank's number of readers: reader k is in local rank ⌊k · local ranks / readers⌋."""
    return sum(number * place.local_ranks // readers == place.local_rank for number in range(readers))


def _size(records: Any) -> int:
    """Bytes of a step's records."""
    if (whole := getattr(records, "nbytes", None)) is not None:
        return int(whole)
    return sum(one.nbytes if isinstance(one, np.ndarray) else len(one) for one in records)


def _sleep_until(deadline_ns: int) -> None:
    while (left := deadline_ns - time.perf_counter_ns()) > 0:
        time.sleep(left / 1e9)


class _Counters:
    """Takes what the emulated file system has counted so far, after each epoch; on rank 0 only."""

    def __init__(self, socket: str | None) -> None:
        self.taken: list[dict[str, int]] = []
        self._server = None
        if socket is not None:
            from forebay_lab.pfs import Server

            self._server = Server.connect(Path(socket))

    def take(self) -> None:
        """Store the sums over all nodes."""
        if self._server is not None:
            nodes = self._server.stats()["nodes"]
            keys = ("reads", "read_bytes", "metadata")
            self.taken.append({key: sum(node[key] for node in nodes) for key in keys})


class _Progress:
    """Tells, from rank 0 and now and then, how many steps are done."""

    def __init__(self, rank: int) -> None:
        self._next = time.monotonic() if rank == 0 else float("inf")
        self._done = 0

    def tell(self) -> None:
        """Count a step."""
        self._done += 1
        if (now := time.monotonic()) >= self._next:
            self._next = now + PROGRESS_EVERY_S
            print(PROGRESS_MARK, self._done, flush=True)


if __name__ == "__main__":
    main()
