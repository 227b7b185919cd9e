"""What is asked of a simulation, checked where it is made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import forebay
from forebay._core import option_error
from forebay.options import resolve
from forebay_lab.bench.strategies import Row, loader_options
from forebay_lab.simulate.costs import Costs
from forebay_lab.simulate.errors import NotModelledError
from forebay_lab.simulate.given_ids import GIVEN, given_json
from forebay_lab.simulate.places import Places
from forebay_lab.simulate.programs import PROGRAMS, Program
from forebay_lab.simulate.tiers import Tier

__all__ = ["FETCHES", "SEEDS", "Request", "rules_of"]

SEEDS = 9
"""Runs of a row: the order in which nodes reach a server decides much, and it is noise."""

FETCHES = ("follow", "whole", "none")
"""What ``forebay run`` reads of the sources, the default first."""

SKEW_SECONDS = 0.02
"""Within which nodes begin: as far apart as ranks leave a barrier and their first imports."""

FAULT_WINDOW = {"after": 8, "steps": 64}
"""Steps that are simulated of a row that takes page faults, and those before them that do not
count: a whole epoch of faults takes minutes, and each step is like the others once all nodes have
found their places."""

JITTER = 0.02
"""By which the compute time of a node is longer, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One simulation: a dataset and a file system, numbers of ranks, and how the ranks read."""

    places: Places
    dataset: dict[str, Any]
    """What a result says of the dataset."""
    spec: dict[str, Any]
    """The file system."""
    ranks: tuple[int, ...]
    ranks_per_node: int
    """Most ranks of a node."""
    batch_size: int | None = None
    """Samples per rank and step; None: `global_batch` says."""
    global_batch: int | None = None
    steps: int | None = None
    """Steps that are simulated; None: whole epochs, and `FAULT_WINDOW` of rows that take page
    faults."""
    epochs: int = 1
    compute_seconds: float | None = None
    """Of a step; None: `sample_seconds` says."""
    sample_seconds: float = 0.0
    """Compute time of a sample."""
    seed: int = 0
    """Of the order."""
    seeds: int = SEEDS
    node_memory: int | None = None
    """Memory of a node [bytes]; None: that of the default machine."""
    tiers: tuple[Tier, ...] = ()
    """Storage tiers of each node, the nearest first; programs run under ``forebay run``."""
    fetch: str = FETCHES[0]
    """What of the files ``forebay run`` reads for copies, one of `FETCHES`."""
    frozen: bool = False
    """Whether opens of files with a copy do not reach the source."""
    stage: bool = False
    """Whether all files are copied before a program starts."""
    ids: npt.NDArray[np.integer[Any]] | None = None
    """Sample ids of each epoch [epochs, ids], the last ones also of further epochs: what all rows
    read, in the order ``given``. None: rows have orders of their own."""
    cores: int | None = None
    """Cores of a node; None: as many as ranks."""
    costs: Costs | None = None
    """Processor times; None: the default ones."""
    programs: Mapping[str, Program] = field(default_factory=lambda: PROGRAMS)
    """Programs that have a model, by name."""
    rules: str | dict[str, Any] = "lustre"
    """Read-ahead of the nodes' clients, as the native module takes it."""
    jitter: float = JITTER
    time_scale: float = 1.0
    """Real seconds per model second, by which processors are faster than they are."""
    is_one_machine: bool = False
    """Whether all nodes share the cores of one machine, as in an emulated run."""
    workload: dict[str, Any] | None = None
    left_out: tuple[str, ...] = ()
    """What of the dataset is not modelled."""
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.fetch not in FETCHES:
            raise option_error(f"--fetch: expected one of {', '.join(FETCHES)}, found {self.fetch!r}")
        for name, is_given in (
            ("fetch", self.fetch != FETCHES[0]),
            ("frozen", self.frozen),
            ("stage", self.stage),
        ):
            if is_given and not self.tiers:
                raise option_error(
                    f"--{name}: expected --tier, as it is about copies of files on tiers, found none"
                )
        if self.steps is not None and self.epochs > 1:
            raise option_error(f"--steps: expected one epoch, found --epochs {self.epochs}")
        if not self.ranks:
            raise option_error("--ranks: expected at least one number, found none")
        if len(set(self.ranks)) < len(self.ranks):
            raise option_error(f"--ranks: expected each number once, found {_listed(self.ranks)}")
        for ranks in self.ranks:
            if ranks < 1:
                raise option_error(f"--ranks: expected numbers of at least 1, found {ranks}")
            if self.batch_size is None and self.global_batch is not None and self.global_batch % ranks:
                raise option_error(
                    f"--global-batch: expected a multiple of {ranks} ranks, found {self.global_batch}"
                )
            if (step := self.batch_of(ranks) * ranks) > self.epoch_samples:
                what = "the dataset has" if self.ids is None else "an epoch of --ids has"
                raise option_error(
                    f"a step of {ranks:,} ranks takes {step:,} samples, and {what} {self.epoch_samples:,}",
                    "take smaller batches with --batch-size, or fewer ranks",
                )

    @property
    def epoch_samples(self) -> int:
        """The samples of an epoch."""
        return self.places.samples if self.ids is None else self.ids.shape[1]

    def ranks_of_nodes(self, ranks: int) -> tuple[int, ...]:
        """Return the ranks of each node: full nodes, or numbers that differ by one."""
        nodes = -(-ranks // self.ranks_per_node)
        edges = [node * ranks // nodes for node in range(nodes + 1)]
        return tuple(end - begin for begin, end in itertools.pairwise(edges))

    def batch_of(self, ranks: int) -> int:
        """Return the samples per rank and step."""
        if self.batch_size is not None:
            return self.batch_size
        return (self.global_batch or 0) // ranks or 1

    def compute_of(self, ranks: int) -> float:
        """Return the compute time of a step [s]."""
        if self.compute_seconds is not None:
            return self.compute_seconds
        return self.sample_seconds * self.batch_of(ranks)

    def steps_of(self, ranks: int) -> int | None:
        """Return the steps that are simulated, where that is less than all epochs."""
        return None if self.steps is None or self.steps >= self.whole_epoch(ranks) else self.steps

    def whole_epoch(self, ranks: int) -> int:
        """Return the steps of an epoch."""
        return -(-self.epoch_samples // (self.batch_of(ranks) * ranks))

    def run_options(self) -> dict[str, Any]:
        """Return the options of ``forebay run``."""
        return {"fetch": self.fetch, "frozen": self.frozen, "stage": self.stage}

    def job(self, row: Row, ranks: int) -> dict[str, Any]:
        """Return the simulated job of a row, as the native module takes it.

        Raises
        ------
        OptionError
            If the row has no model.
        """
        program = self.programs.get(row.strategy) if row.baseline is not None else None
        if row.baseline is not None and program is None:
            raise NotModelledError(f"the program {row.strategy}")
        if row.label:
            raise NotModelledError(f"the surroundings of {row.name}")
        options = loader_options("forebay" if program else row.strategy)
        order_name = program.order if program else row.order
        order_options = {} if order_name == GIVEN else {"order": order_name}
        found = resolve({**order_options, "store": options["store"]}, {})
        store = found["store"]
        of_nodes = self.ranks_of_nodes(ranks)
        machine: dict[str, Any] = {"cores": self.cores or max(of_nodes)}
        machine["memory_bytes"] = self.node_memory or 128 << 30
        machine["is_shared"] = self.is_one_machine
        costs = (self.costs or Costs.default()).faster(self.time_scale)
        return {
            "storage": self.spec,
            "rules": self.rules,
            "ranks": ranks,
            "nodes": len(of_nodes),
            "machine": machine,
            "batch_size": self.batch_of(ranks),
            "order": given_json(self.ids, self.places.samples)
            if order_name == GIVEN
            else _order_json(found["order"]),
            "given": self.ids.tolist() if order_name == GIVEN and self.ids is not None else [],
            "strategy": asdict(options["strategy"]),
            "program": program and program.faster(self.time_scale),
            "tiers": [tier.as_job() for tier in self.tiers],
            "run": self.run_options(),
            "store": None if store is None else asdict(store),
            "epochs": self.epochs,
            "steps": self.steps_of(ranks),
            "fault_window": FAULT_WINDOW if self.steps is None else None,
            "compute_us": self.compute_of(ranks) * 1e6,
            "compute_jitter": self.jitter,
            "start_skew_us": SKEW_SECONDS * 1e6 / self.time_scale,
            "seed": self.seed,
            "costs": costs.as_json(),
        }


def rules_of(client: str, spec: Mapping[str, Any]) -> str | dict[str, Any]:
    """Return the read-ahead of a client, ``lustre`` or ``linux``, as the native module takes it.

    The kernel has one window for `read()` and page faults, which is set to that of page faults, as
    the emulator does.
    """
    if client == "linux":
        return {"linux": {"read_ahead_bytes": spec["read_ahead_mmap_bytes"]}}
    return client


_ORDERS: Mapping[type, str] = {
    forebay.Group: "group",
    forebay.LocalShuffle: "local-shuffle",
    forebay.Opportunistic: "opportunistic",
}
"""Orders that have parameters."""


def _order_json(order: object) -> dict[str, Any]:
    if isinstance(order, str):
        return {"kind": order}
    if isinstance(order, forebay.Group | forebay.LocalShuffle | forebay.Opportunistic):
        name = _ORDERS[type(order)]
        return {"kind": name, **{key: one for key, one in asdict(order).items() if one is not None}}
    raise NotModelledError(f"the order {order!r}")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
