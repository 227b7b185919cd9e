"""Run a bench: interleaved, repeated rows, each run in new processes that inherit nothing.

The bench starts the nodes (`nodes`), builds the index if the engine runs, and measures the limit of
the storage. A verification run of each row follows, which also warms up everything but the file
system; then each repetition runs each row once. If a row's processes die, the bench reports the end
of their output and skips the row from then on. An interrupted bench ends the ranks, unmounts, and
removes what it made.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from forebay import _native
from forebay._core import ForebayError
from forebay_lab.bench import machine, processes, timing, verify
from forebay_lab.bench.emulation import Emulation, emulate
from forebay_lab.bench.facts import SCHEMA, Facts
from forebay_lab.bench.measured_row import MeasuredRow
from forebay_lab.bench.minimum_bytes import minimum_bytes
from forebay_lab.bench.node_memory import memory_groups
from forebay_lab.bench.nodes import SCRATCH, Nodes, nodes
from forebay_lab.bench.settings import Settings
from forebay_lab.bench.strategies import Row
from forebay_lab.bench.surroundings import check_tiers
from forebay_lab.ranks import launch
from forebay_lab.report.data import RESULT_VERSION
from forebay_lab.scratch import remove_leftovers, scratch

__all__ = ["bench"]

Report = Callable[[str, int, int], None]

VERIFIED_EPOCHS = 2
"""Most epochs of a verification run; the second shows whether epochs differ or are equal."""

_FOREBAY = (sys.executable, "-m", "forebay")

_ENTER = str(Path(__file__).with_name("enter.py"))

LIMIT_SECONDS, LIMIT_BLOCK_BYTES = 0.5, 4 << 20
LIMIT_KINDS = (("sequential", 1), ("direct", 1), ("direct", 4))
"""Kind and threads of the limit: one stream is best on disks that seek, several against latency."""
LONGEST_STRETCH = 4.0
"""A figure takes as much longer as the emulator is slowed down, up to this factor."""


def bench(facts: Facts, rows: Sequence[Row], settings: Settings, report: Report) -> dict[str, Any]:
    """Run a bench and return its result; docs/metrics.md says what is in it.

    Parameters
    ----------
    facts
        The dataset.
    rows
        What to compare.
    settings
        How.
    report
        Told (what, done, all) while it runs.

    Raises
    ------
    OptionError
        If the settings do not fit the dataset.
    StorageError
        If the emulator fails.
    LaunchError
        If there is no way to start ranks.
    """
    settings.check_samples(facts.samples)
    measured = [MeasuredRow(row) for row in rows]
    for one in measured:
        if (reason := _missing(one.row, facts)) is not None:
            one.status, one.error = "skipped", reason
    running = sum(one.status == "ok" for one in measured)
    runner = _Runner(facts, settings, report, running)
    load = os.getloadavg()[0]
    remove_leftovers(SCRATCH)
    check_tiers({row.label: row.surroundings for row in rows}, len(settings.tiers))
    with (
        memory_groups(settings.nodes, settings.node_memory) as groups,
        nodes(facts, settings) as where,
        emulate(settings, where.all_mounts(), where.time_scale) as emulation,
    ):
        runner.emulation, runner.memory_groups = emulation, groups
        of_engine = [one.row for one in measured if one.status == "ok" and one.row.baseline is None]
        if of_engine:
            runner.index(where, recipe=any(row.computes for row in of_engine))
        limit = _limit(where, settings)
        if groups:
            # Pages that this process has read belong to its own group, not to that of a node.
            where.drop_caches()
        if settings.verify:
            for one in measured:
                runner.verify(one, where)
        for number in range(settings.repetitions):
            for one in measured:
                runner.measure(one, where, number)
        emulator, warnings = where.describe(), [*where.warnings]
    return _result(
        facts,
        settings,
        runner,
        measured,
        limit,
        emulator,
        warnings + _warnings(facts, settings, load, runner) + _unlinked(settings, runner.launcher, rows),
    )


def _missing(row: Row, facts: Facts) -> str | None:
    if row.baseline is not None:
        return row.baseline.missing(facts)
    return None if facts.for_engine else f"the engine does not read {facts.format} yet"


class _Runner:
    """Starts runs, and tells how many steps of all are done."""

    def __init__(self, facts: Facts, settings: Settings, report: Report, rows: int) -> None:
        self._facts, self._settings, self._report = facts, settings, report
        self.launcher = _launcher(settings)
        self.emulation = Emulation(None)
        self.memory_groups: list[Path] = []
        self._per_epoch = settings.steps_per_epoch(facts.samples)
        self._done = 0
        epochs = settings.repetitions * settings.epochs
        epochs += min(settings.epochs, VERIFIED_EPOCHS) if settings.verify else 0
        self._all = rows * epochs * self._per_epoch

    def index(self, where: Nodes, *, recipe: bool) -> None:
        """Build the index of the engine's rows, and find a recipe where a row computes the index.

        They are made once for a dataset, not once for a run.

        Raises
        ------
        LaunchError
            If that fails.
        """
        for paths in dict.fromkeys(where.paths):
            with launch.held_interrupts() as interrupts:
                launch.run(
                    [*_FOREBAY, *(("recipe", "build") if recipe else ("index",)), "--schema", SCHEMA, *paths],
                    deadline_s=self._settings.deadline_s,
                    progress=lambda done: None,
                    what="index",
                    interrupts=interrupts,
                    variables=where.variables,
                )

    def verify(self, one: MeasuredRow, where: Nodes) -> None:
        """Run a row once for its digests."""
        if one.status != "ok":
            return
        epochs = min(self._settings.epochs, VERIFIED_EPOCHS)
        title = f"{one.row.name}: verification"
        try:
            ranks = self._run(one.row, where, title, verify=True, epochs=epochs)
            one.verified = verify.join([rank.arrays for rank in ranks], self._facts.samples)
        except (launch.LaunchError, ValueError) as error:
            one.fail(error)
            return
        if one.verified.fault is not None:
            one.status, one.error = "failed", f"{title}: {one.verified.fault}"

    def measure(self, one: MeasuredRow, where: Nodes, number: int) -> None:
        """Run a row once for its times."""
        if one.status != "ok":
            return
        settings = self._settings
        if settings.cold:
            where.cool()
        where.begin()
        title = f"{one.row.name}: {number + 1} of {settings.repetitions}"
        try:
            ranks = self._run(one.row, where, title, verify=False, epochs=settings.epochs)
            found = timing.repetition(ranks, where.time_scale)
        except (launch.LaunchError, ValueError) as error:
            one.fail(error)
            return
        found |= where.end(settings.cold)
        if one.minimum_bytes is None and self._facts.for_engine:
            one.minimum_bytes = minimum_bytes(self._facts.paths, (rank.arrays["ids"] for rank in ranks))
        found["read_amplification"] = _fetched_needed_ratio(found["pfs"], one.minimum_bytes)
        one.repetitions.append(found)
        one.explain = ranks[0].measured["explain"]
        one.shuffle_quality = ranks[0].measured["shuffle_quality"]
        one.tiers = ranks[0].measured["tiers"]

    def _run(self, row: Row, where: Nodes, title: str, *, verify: bool, epochs: int) -> list[timing.Rank]:
        settings, facts = self._settings, self._facts
        where.empty_tiers()
        with (
            launch.held_interrupts() as interrupts,
            scratch(f"{SCRATCH}run-") as directory,
        ):
            run: dict[str, Any] = {
                "directory": str(directory),
                "strategy": row.strategy,
                "order": row.order,
                "baseline": row.baseline is not None,
                "baseline_files": [os.path.abspath(file) for file in settings.baseline_files],  # noqa: PTH100
                "paths": [[os.path.abspath(path) for path in paths] for paths in where.paths],  # noqa: PTH100
                "nodes": settings.ranks_of_nodes(),
                "enter": [self._enter(node) for node in range(settings.nodes)],
                "ranks": settings.ranks,
                "world_ranks": settings.world_ranks,
                "samples": facts.samples,
                "batch_size": settings.batch_size,
                "epochs": epochs,
                "steps": settings.steps,
                "compute_seconds": 0.0 if verify else settings.compute_seconds * where.time_scale,
                "seed": settings.seed,
                "verify": verify,
                "deadline_s": settings.deadline_s,
                "job": f"bench-{secrets.token_hex(8)}",
                "counters": None if verify else where.counters(),
                "memory_groups": [str(group) for group in self.memory_groups],
                "tiers": [[str(mount) for mount in of_node] for of_node in where.tiers],
                "environment": row.surroundings.environment,
                "wrapper": row.surroundings.wrapper,
                "prefix": [],
            }
            path = directory / "run.json"
            if run["memory_groups"] or run["environment"] or run["wrapper"]:
                run["prefix"] = [sys.executable, "-S", _ENTER, str(path)]
            path.write_text(json.dumps(run), encoding="utf-8")
            try:
                launch.run(
                    self._command(path, run["prefix"]),
                    deadline_s=settings.deadline_s,
                    progress=lambda done: self._report("steps", self._done + done, self._all),
                    what=title,
                    interrupts=interrupts,
                    variables=where.variables,
                )
            except BaseException:
                # What the launcher started on other nodes may have outlived it.
                if self.emulation.cluster is not None:
                    self.emulation.cluster.clear()
                raise
            if where.tiers and self.emulation.cluster is not None:
                # The daemons of tiers: the mounts go now.
                self.emulation.cluster.clear()
            self._done += epochs * self._per_epoch
            return [_read(directory, rank) for rank in range(settings.ranks)]

    def _command(self, run: Path, prefix: list[str]) -> list[str]:
        if self.launcher == "processes":
            return processes.command(run)
        per_node = [len(ranks) for ranks in self._settings.ranks_of_nodes()]
        program = ("-m", "forebay_lab.bench.rank", str(run))
        prefix = [*prefix, "mpi"] if prefix else []
        return launch.command(self._settings.ranks, program, self.emulation.cluster, per_node, prefix)

    def _enter(self, node: int) -> list[str]:
        cluster = self.emulation.cluster
        return [] if cluster is None else cluster.on(node, ())


def _fetched_needed_ratio(pfs: dict[str, Any] | None, needed: int | None) -> float | None:
    if pfs is None or not needed:
        return None
    return float(sum(node["read_bytes"] for node in pfs["nodes"])) / needed


def _launcher(settings: Settings) -> str:
    """Choose what starts the ranks; one rank alone needs no MPI."""
    if settings.launcher != "auto":
        if settings.launcher == "mpi":
            launch.command(settings.ranks, ())  # Raises where there is none.
        return settings.launcher
    return "mpi" if settings.ranks > 1 and launch.missing_mpi(settings.ranks) is None else "processes"


def _read(directory: Path, rank: int) -> timing.Rank:
    file = directory / f"rank-{rank}.json"
    if not file.exists():
        raise launch.LaunchError(f"bench: expected a result of rank {rank}, found none")
    with np.load(file.with_suffix(".npz")) as arrays:
        return timing.Rank(json.loads(file.read_text("utf-8")), {name: arrays[name] for name in arrays.files})


def _limit(where: Nodes, settings: Settings) -> dict[str, Any]:
    """Measure the storage's rate with plain readers of one file, its caches in the same state."""
    file = where.limit_file()
    figures = []
    for kind, threads in LIMIT_KINDS:
        try:
            figure = _native.limit(
                file,
                block_bytes=LIMIT_BLOCK_BYTES,
                seconds=LIMIT_SECONDS * min(where.time_scale, LONGEST_STRETCH),
                kind=kind,
                threads=threads,
                cold=settings.cold,
            )
        except (ForebayError, OSError) as error:
            # O_DIRECT is refused by some file systems; that says nothing about the others.
            where.warnings.append(f"limit of {file} ({kind}, {threads} threads): {error}")
            continue
        figure["threads"] = threads
        figure["rate_mib_s"] *= where.time_scale
        for key in ("seconds", "latency_p50_us", "latency_p99_us"):
            figure[key] /= where.time_scale
        figures.append(figure)
    return {"rate_mib_s": max((figure["rate_mib_s"] for figure in figures), default=None), "figures": figures}


def _unlinked(settings: Settings, launcher: str, rows: Sequence[Row]) -> list[str]:
    """Warn of rows that differ from their names, because their nodes could not be linked."""
    names = ", ".join(row.name for row in rows if row.crosses)
    if settings.nodes == 1 or not names:
        return []
    if launcher == "processes":
        why = "without MPI (--launcher processes) nodes are not linked"
    elif settings.world_ranks > settings.ranks:
        why = "nodes are not linked where only a part of the ranks runs (--world-size)"
    else:
        return []
    return [f"{why}: in {names} every node went on alone, without cursors, an index or turns of others"]


def _warnings(facts: Facts, settings: Settings, load: float, runner: _Runner) -> list[str]:
    found = []
    emulation = runner.emulation
    if emulation.by == "environment" and settings.node_emulation == "auto":
        found.append(
            f"the nodes are processes of this machine, told apart by the environment: {emulation.reason}"
        )
    cores = len(os.sched_getaffinity(0))
    if load > cores:
        found.append(f"the machine was busy: a load of {load:.1f} on {cores} cores when the bench began")
    if settings.verify and settings.world_ranks > settings.ranks:
        found.append(f"{settings.ranks} of {settings.world_ranks} ranks ran: whole epochs were not compared")
    taken, whole = settings.steps_per_epoch(facts.samples), settings.whole_epoch(facts.samples)
    if settings.verify and taken < whole:
        found.append(f"epochs were cut after {taken} of {whole} steps: whole epochs were not compared")
    if not settings.verify:
        found.append("samples were not verified")
    return found


def _result(
    facts: Facts,
    settings: Settings,
    runner: _Runner,
    measured: Sequence[MeasuredRow],
    limit: dict[str, Any],
    emulator: dict[str, Any] | None,
    warnings: list[str],
) -> dict[str, Any]:
    verified = {
        one.row.name: (one.row.order, one.verified)
        for one in measured
        if one.verified is not None and one.verified.fault is None
    }
    return {
        "version": RESULT_VERSION,
        "forebay": forebay.__version__,
        "command": list(settings.command),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": machine.facts(),
        "dataset": facts.as_json(),
        "ranks": settings.ranks,
        "world_size": settings.world_ranks,
        "nodes": settings.nodes,
        "ranks_per_node": [len(ranks) for ranks in settings.ranks_of_nodes()],
        "node_emulation": runner.emulation.as_json(),
        "batch_size": settings.batch_size,
        "global_batch": settings.batch_size * settings.world_ranks,
        "steps": settings.steps_per_epoch(facts.samples),
        "epochs": settings.epochs,
        "repetitions": settings.repetitions,
        "compute_seconds": settings.compute_seconds,
        "seed": settings.seed,
        "cold": settings.cold,
        "tiers": list(settings.tiers),
        "node_memory_bytes": settings.node_memory,
        "link_rate_bits_per_second": settings.link_rate,
        "launcher": runner.launcher,
        "pfs": emulator,
        "limit": limit,
        "warnings": warnings,
        "rows": [one.as_json() for one in measured],
        "verified": verify.compare(verified),
        "simulation": None,
    }
