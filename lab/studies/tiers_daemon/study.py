"""The sections."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from forebay_lab import pfs
from forebay_lab.bench.turns import in_turn, ratios, spread
from forebay_lab.ranks.memory import pss_bytes
from forebay_lab.ranks.rusage import process_usage
from studies.harness import cargo, daemon
from studies.harness.sections import DIRECTORY, MIB, Row, Scope, Study

REPETITIONS = 7
# Data must be this old before they are copied [s].
SETTLED_S = 2.2
CHUNKS = (1_000, 10_000, 100_000)
ORDERS = ("sequential", "contiguous", "shuffle", "group")


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    """Give tiers a directory, and a daemon of their own."""
    DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DIRECTORY.resolve(), ignore_cleanup_errors=True) as name:
        place = Path(name)
        (place / "run").mkdir(mode=0o700)
        os.environ |= {"FOREBAY_RUNTIME_DIR": f"{place}/run", "FOREBAY_TIERS_IDLE": "1000"}
        # A tier may be larger than what the disk has free; it is sparse.
        warnings.simplefilter("ignore")
        try:
            yield place
        finally:
            daemon.stop()


def _loader(path: Path, record_bytes: int, batch: int, tier: str | None, **options: Any) -> forebay.Loader:
    strategy = forebay.Strategy(access="pread", direct=options.pop("direct", False))
    tiers = {"tiers": [tier]} if tier else {}
    dataset = forebay.open(path, format="raw", record_bytes=record_bytes)
    return forebay.Loader(dataset, batch, strategy=strategy, **tiers, **{"world": "single", **options})


def _new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _pss_mib(pid: int | None) -> float:
    """Return the memory of a process; None: of this one."""
    return pss_bytes(pid or "self") / MIB


def _cpu_seconds(pid: int) -> float:
    """Return what the threads that a process has now have computed."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


# --- open ---


def opening(scope: Scope) -> list[Row]:
    """Open a loader without tiers, with a warm tier, and with one whose daemon must start."""
    fill_log = cargo.example("forebay-tier", "fill_log")
    rows = []
    for chunks in CHUNKS[:1] if scope.tiny else CHUNKS:
        with _place() as place:
            rows.append(_opening(place, chunks, fill_log))
    return rows


def _opening(place: Path, chunks: int, fill_log: Path) -> Row:
    source, tier = place / "x.raw", place / "tier"
    with source.open("wb") as file:
        file.truncate(chunks * MIB)
    tier.mkdir()
    described = f"{tier}:{chunks + 2048}MiB"
    time.sleep(SETTLED_S)
    with _loader(source, MIB, 1, described, node_memory="64MiB") as loader:
        next(iter(loader))
        while not loader.stats()["copied_bytes"]:
            time.sleep(0.02)
    daemon.stop()
    (level,) = tier.glob("forebay-*/v1")
    subprocess.run([fill_log, level, str(chunks)], check=True)
    found: dict[str, list[float]] = {"plain": [], "warm": [], "start": []}
    _time_opening(source, described)
    daemon_mib, loader_mib = [], []
    for _ in range(REPETITIONS):
        daemon.stop()
        found["start"].append(_time_opening(source, described))
        daemon_mib.append(_pss_mib(daemon.pid()))
        for _ in range(5):
            found["plain"].append(_time_opening(source, None))
            found["warm"].append(_time_opening(source, described))
        before, after = (_new_process(_pss_of_loader, source, tiers) for tiers in (None, described))
        loader_mib.append(after - before)
    with _loader(source, MIB, 1, described, node_memory="64MiB"):
        shared = _memfd_bytes(daemon.pid())
    return {
        "chunks": chunks,
        **spread("plain_ms", found["plain"]),
        **spread("warm_ms", found["warm"]),
        **spread("start_ms", found["start"]),
        "warm_extra_ms": statistics.median(found["warm"]) - statistics.median(found["plain"]),
        "start_extra_ms": statistics.median(found["start"]) - statistics.median(found["plain"]),
        "log_bytes": (level / "log").stat().st_size,
        "table_bytes": shared["table"],
        "claims_bytes": shared["claims"],
        "bytes_per_mib": sum(shared.values()) / chunks,
        **spread("daemon_pss_mib", daemon_mib),
        **spread("loader_pss_mib", loader_mib),
    }


def _time_opening(source: Path, tier: str | None) -> float:
    """Return the time until a loader is made [ms]."""
    warnings.simplefilter("ignore")
    dataset = forebay.open(source, format="raw", record_bytes=MIB)
    len(dataset)
    begun = time.perf_counter()
    with _loader(source, MIB, 1, tier, node_memory="64MiB") as loader:
        ended = time.perf_counter()
        next(iter(loader))
    return (ended - begun) * 1e3


def _pss_of_loader(source: Path, tier: str | None) -> float:
    warnings.simplefilter("ignore")
    with _loader(source, MIB, 1, tier, node_memory="64MiB", order="shuffle") as loader:
        next(iter(loader))
        return _pss_mib(None)


def _memfd_bytes(pid: int) -> dict[str, int]:
    """Return the sizes of the daemon's shared memory."""
    found = {}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        name = str(descriptor.readlink())
        for kind in ("table", "claims"):
            if name.startswith(f"/memfd:forebay-tier-{kind}"):
                found[kind] = descriptor.stat().st_size
    return found


# --- cost ---


def cost(scope: Scope) -> list[Row]:
    """Compare processor time and memory on local files with and without tiers."""
    rows = []
    data_mib = 32 if scope.tiny else 128
    for name, record_bytes, batch in (("3 KB", 3 << 10, 256), ("110 KB", 110_000, 32)):
        with _place() as place:
            source = place / "x.raw"
            records = data_mib * MIB // record_bytes
            source.write_bytes(np.random.default_rng(1).bytes(records * record_bytes))
            os.sync()
            time.sleep(SETTLED_S)

            def run(kind: str, place: Path, size: tuple[int, int]) -> list[Row]:
                top = "/dev/shm" if kind == "memory" else place
                with tempfile.TemporaryDirectory(prefix="forebay-tier-", dir=top) as directory:
                    tier = None if kind == "none" else f"{directory}:{2 * data_mib}MiB"
                    found: list[Row] = _new_process(_epochs, place / "x.raw", *size, tier)
                    daemon.stop()
                return found

            kinds = {
                kind: partial(run, kind, place, (record_bytes, batch)) for kind in ("none", "disk", "memory")
            }
            found = in_turn(kinds, scope.pick(5, 2), warm_ups=0)
        rows += _cost_rows(name, data_mib, found)
    return rows


def _cost_rows(name: str, data_mib: int, found: dict[str, list[list[Row]]]) -> list[Row]:
    rows = []
    for kind, runs in found.items():
        for epoch in range(3):
            row: Row = {"samples": name, "tier": kind, "epoch": epoch + 1, "data_mib": data_mib}
            for field in runs[0][epoch]:
                row |= spread(field, [run[epoch][field] for run in runs])
            cpu, plain = ([run[epoch]["cpu_seconds"] for run in of] for of in (runs, found["none"]))
            rows.append({**row, **spread("cpu_ratio", ratios(cpu, plain))})
    return rows


def _epochs(source: Path, record_bytes: int, batch: int, tier: str | None) -> list[Row]:
    """Go through three epochs; after the first, wait for the copies."""
    warnings.simplefilter("ignore")
    rows = []
    with _loader(source, record_bytes, batch, tier, node_memory="32MiB", order="shuffle") as loader:
        pid = daemon.pid() if tier else None

        def cpu_seconds() -> float:
            return process_usage().cpu_seconds + (_cpu_seconds(pid) if pid else 0.0)

        for epoch in range(3):
            before, begun = cpu_seconds(), time.perf_counter()
            served_before = _level_bytes(loader)
            loader.set_epoch(epoch)
            for _ in loader:
                pass
            row = {"seconds": time.perf_counter() - begun}
            row["pss_mib"] = _pss_mib(None) + (_pss_mib(pid) if pid else 0)
            if pid:
                _wait_for_copies()
            # With the writing that goes on after the epoch.
            row["cpu_seconds"] = cpu_seconds() - before
            of_source, of_tier = (
                now - then for now, then in zip(_level_bytes(loader), served_before, strict=True)
            )
            row["served_share"] = of_tier / (of_source + of_tier)
            rows.append(row)
    return rows


def _level_bytes(loader: forebay.Loader) -> tuple[int, int]:
    """Return the bytes that the source and the tiers have served."""
    levels = loader.stats()["levels"]
    of_source = levels.pop("source")["bytes"] + levels.pop("page_cache")["bytes"]
    return of_source, sum(level["bytes"] for level in levels.values())


def _wait_for_copies() -> None:
    last: Any = None
    looks = 0
    while looks < 5:
        now = (daemon.usage() or {})["levels"]
        looks = looks + 1 if now == last else 0
        last = now
        time.sleep(0.02)


# --- shared ---


def shared(scope: Scope) -> list[Row]:
    """Count at the emulator what four ranks, and two jobs at once, read in two epochs."""
    rows = []
    data_bytes = (16 if scope.tiny else 32) * MIB
    with _place() as place:
        data = place / "data"
        data.mkdir()
        (data / "x.raw").write_bytes(np.random.default_rng(1).bytes(data_bytes))
        time.sleep(SETTLED_S)
        with (
            pfs.mounted(data, preset="none") as (server, _),
            ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool,
        ):
            for direct in (False, True):
                for order in ORDERS[:1] if scope.tiny else ORDERS:
                    for jobs, ranks in ((1, 4), (2, 1)):
                        row: Row = {"order": order, "direct": direct, "jobs": jobs, "ranks": ranks}
                        found = [
                            _shared(place, server, pool, data_bytes, row)
                            for _ in range(1 if scope.tiny else 3)
                        ]
                        for field in found[0]:
                            row |= spread(field, [one[field] for one in found])
                        rows.append(row)
    return rows


def _shared(
    place: Path, server: pfs.Server, pool: ProcessPoolExecutor, data_bytes: int, row: Row
) -> dict[str, float]:
    node = server.mounts[0]
    with tempfile.TemporaryDirectory(dir=place) as tier:
        server.drop_caches(node)
        server.reset()
        how = (node / "x.raw", f"{tier}:{2 * data_bytes}", row["order"], row["direct"], row["ranks"])
        # The ranks of a job wait for each other: each gets a process.
        futures = [
            pool.submit(_rank, *how, rank, f"{tier}-{job}")
            for job in range(row["jobs"])
            for rank in range(row["ranks"])
        ]
        uncopied = sum(future.result() for future in futures)
        read_bytes = sum(one["read_bytes"] for one in server.stats()["nodes"])
        daemon.stop()
    return {
        "source_ratio": read_bytes / data_bytes,
        "uncopied_ratio": uncopied / data_bytes,
        "unexplained_ratio": max(0, read_bytes - data_bytes - uncopied) / data_bytes,
    }


def _rank(path: Path, tier: str, order: str, direct: bool, ranks: int, rank: int, job: str) -> int:
    warnings.simplefilter("ignore")
    world = forebay.World(rank=rank, size=ranks, job=job)
    with _loader(
        path, 16 << 10, 64 // ranks, tier, direct=direct, order=order, node_memory="256MiB", world=world
    ) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        return int(loader.stats()["uncopied_bytes"])


STUDY = Study(sections={"open": opening, "cost": cost, "shared": shared})
