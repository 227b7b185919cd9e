"""The job of a bench result again, simulated: what the model says beside what was measured.

The nodes of an emulated run are one machine: they share its cores, and its processors do not become
slower with the time scale. Their clients are Linux, their page cache that of the machine.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta

from forebay._core import FormatError, OptionError
from forebay_lab.bench import baselines
from forebay_lab.bench.containers import COMMIT_EVERY
from forebay_lab.bench.generate import block_samples
from forebay_lab.bench.strategies import Row
from forebay_lab.bench.workload import load
from forebay_lab.checked import convert
from forebay_lab.report import data
from forebay_lab.simulate.costs import Costs
from forebay_lab.simulate.errors import NotModelledError
from forebay_lab.simulate.places import of_dataset
from forebay_lab.simulate.request import SEEDS, Request
from forebay_lab.simulate.result import not_modelled, simulate_row, summary
from forebay_lab.strategies import PRESETS

__all__ = ["add_simulated", "read", "request_like", "simulate_like"]

Report = Callable[[str, int, int], None]

_Count = Annotated[int, Meta(ge=1, le=1 << 48)]
_Bytes = Annotated[int, Meta(ge=1, le=1 << 60)]


class _Dataset(msgspec.Struct):
    format: str
    samples: _Count
    bytes: _Bytes
    mean_bytes: Annotated[float, Meta(gt=0, le=1 << 40)]
    files: _Count = 1


class _Machine(msgspec.Struct):
    cores: _Count
    memory_bytes: _Bytes
    name: str | None = None


class _Workload(msgspec.Struct):
    name: str


class _FileSystem(msgspec.Struct):
    spec: dict[str, Any]
    time_scale: Annotated[float, Meta(gt=0, le=1e9)]


class _Numbers(msgspec.Struct):
    wall_seconds: Annotated[float, Meta(ge=0, le=1e12)]
    startup_seconds: Annotated[float, Meta(ge=0, le=1e12)]


class _RowForm(msgspec.Struct):
    name: str
    strategy: str
    order: str
    status: str
    label: str = ""
    repetitions: list[_Numbers] = []
    median: _Numbers | None = None


class _Form(msgspec.Struct):
    """What of a bench result makes a job."""

    dataset: _Dataset
    machine: _Machine
    ranks: _Count
    world_size: _Count
    ranks_per_node: list[_Count]
    batch_size: _Count
    steps: _Count
    epochs: _Count
    compute_seconds: Annotated[float, Meta(ge=0, le=3600)]
    cold: bool
    rows: list[_RowForm]
    pfs: _FileSystem | None = None
    workload: _Workload | None = None
    node_memory_bytes: _Bytes | None = None
    tiers: list[str] = []
    seed: Annotated[int, Meta(ge=0)] = 0


def read(path: Path) -> dict[str, Any]:
    """Read a result of ``forebay bench --json``.

    Raises
    ------
    StorageError
        If it cannot be read.
    FormatError
        If it is no result of a bench.
    """
    found = data.read(path)
    if found.kind != "bench":
        raise FormatError(f"--like {path}: expected a result of forebay bench, found one of {found.kind}")
    result = dict(found.values)
    _form(result, f"--like {path}")
    return result


def request_like(result: dict[str, Any], costs: Costs, seeds: int) -> Request:
    """Return the job that a bench result was measured with.

    Raises
    ------
    FormatError
        If a key is missing, or not as docs/metrics.md says.
    OptionError
        If a job of this kind has no model.
    """
    form = _form(result, "a bench result")
    if form.pfs is None:
        raise NotModelledError("a file system that is not emulated", "measure with --pfs")
    if not form.cold:
        raise NotModelledError("files that are in the page cache", "measure with --cold")
    if form.world_size != form.ranks:
        raise NotModelledError("ranks that are a part of their job (--world-size)")
    if form.tiers:
        raise NotModelledError("storage tiers")
    places, left_out = of_dataset(
        form.dataset.format,
        samples=form.dataset.samples,
        files=form.dataset.files,
        file_bytes=form.dataset.bytes,
        mean_bytes=form.dataset.mean_bytes,
        commit_samples=_commit_samples(form.workload),
    )
    spec = form.pfs.spec
    request = Request(
        places=places,
        dataset=result["dataset"],
        # The page cache is that of the machine, or of its share.
        spec={**spec, "cache_bytes": form.node_memory_bytes},
        ranks=(form.ranks,),
        ranks_per_node=-(-form.ranks // len(form.ranks_per_node)),
        batch_size=form.batch_size,
        steps=form.steps if form.epochs == 1 else None,
        epochs=form.epochs,
        compute_seconds=form.compute_seconds,
        seed=form.seed,
        seeds=seeds,
        node_memory=form.node_memory_bytes or form.machine.memory_bytes,
        cores=form.machine.cores,
        costs=costs,
        rules={"linux": {"read_ahead_bytes": _read_ahead_kb(result, spec) * 1024}},
        jitter=0.0,
        time_scale=form.pfs.time_scale,
        is_one_machine=True,
        left_out=tuple(left_out),
    )
    if request.ranks_of_nodes(form.ranks) != tuple(form.ranks_per_node):
        raise NotModelledError("nodes whose numbers of ranks differ by more than one")
    if form.epochs > 1 and form.steps < request.whole_epoch(form.ranks):
        raise NotModelledError("several epochs that are cut short (--steps)")
    return request


def add_simulated(result: dict[str, Any], request: Request, report: Report) -> None:
    """Simulate each measured row: add ``simulated`` to it, and ``simulation`` to the result.

    Parameters
    ----------
    result
        Of a bench.
    request
        Its job.
    report
        Told (what, done, all) while it runs.

    Raises
    ------
    OptionError
        If the job of a row is not valid.
    """
    seeds = list(range(request.seeds))
    costs = request.costs or Costs.default()
    rows = result["rows"]
    for done, row in enumerate(rows):
        report("rows, simulated", done, len(rows))
        row["simulated"] = None
        if row["status"] == "ok" and row["median"]:
            row["simulated"] = _with_error(_simulated(request, row, seeds), row)
    result["version"] = data.RESULT_VERSION
    result["simulation"] = {
        "seeds": seeds,
        "costs": costs.as_json(),
        "not_modelled": not_modelled(request),
    }
    if costs.machine != (measured := result["machine"].get("name")):
        result["warnings"] = [
            *result["warnings"],
            f"simulated with the costs of another machine: {costs.machine}; measured on {measured or 'an unnamed one'}",
        ]


def simulate_like(result: dict[str, Any], costs: Costs, report: Report) -> None:
    """Add what the model says of a bench that has just run, or to each row why it says nothing.

    Parameters
    ----------
    result
        Of a bench.
    costs
        Of its machine.
    report
        Told (what, done, all) while it runs.
    """
    try:
        add_simulated(result, request_like(result, costs, SEEDS), report)
    except OptionError as error:
        result["simulation"] = None
        for row in result["rows"]:
            row["simulated"] = _skipped(str(error))


def _simulated(request: Request, row: dict[str, Any], seeds: list[int]) -> dict[str, Any]:
    strategy: str = row["strategy"]
    baseline = baselines.find(()).get(strategy)
    if baseline is None and strategy.partition(":")[0] not in (*PRESETS, "store"):
        return _skipped(str(NotModelledError(f"the program {strategy}")))
    of_bench = Row(strategy=strategy, order=row["order"], baseline=baseline, label=row.get("label") or "")
    return summary(simulate_row(request, of_bench, request.ranks[0], seeds))


def _skipped(error: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("median", "spread", "sensitive", "range", "seeks"))
    return {"status": "skipped", "error": error, **nothing}


def _with_error(simulated: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Add how far the simulated wall time is from the measured one, as a share of that."""
    middle = simulated["median"]
    measured = row["median"]["wall_seconds"]
    error = None if middle is None or not measured else middle["wall_seconds"] / measured - 1
    return {**simulated, "wall_error": error}


def _commit_samples(workload: _Workload | None) -> int:
    """Return the samples of a transaction: Caffe's number, or fewer where blocks are smaller."""
    if workload is None:
        return COMMIT_EVERY
    return min(COMMIT_EVERY, block_samples(load(workload.name).sample))


def _read_ahead_kb(result: dict[str, Any], spec: dict[str, Any]) -> int:
    """Return the read-ahead that the mounts had; where it was not set, that of the file system."""
    for row in result["rows"]:
        for one in row["repetitions"] or []:
            for node in data.dicts((one.get("pfs") or {}).get("nodes")):
                if isinstance(kb := node.get("read_ahead_kb"), int) and not isinstance(kb, bool) and kb >= 0:
                    return kb
    found = spec.get("read_ahead_mmap_bytes")
    return found // 1024 if isinstance(found, int) else 128


def _form(result: dict[str, Any], name: str) -> _Form:
    return convert(result, _Form, functools.partial(_refuse, name))


def _refuse(name: str, key: str, expected: str, found: object) -> NoReturn:
    text = "nothing" if found is None else json.dumps(found, default=str)[:80]
    raise FormatError(f"{name}: key {key}: expected {expected}, found {text}")
