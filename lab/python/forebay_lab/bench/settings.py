"""What a bench is asked to do, checked where it is made."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from forebay._core import option_error

LAUNCHERS = ("auto", "mpi", "processes")
EMULATIONS = ("auto", "namespaces", "environment")

LEAST_REPETITIONS, REPETITIONS = 1, 3
DEADLINE_S = 900.0
"""Of one run of one row [s, real]; it is a watchdog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One bench."""

    ranks: int
    nodes: int = 1
    ranks_per_node: tuple[int, ...] | None = None
    """Ranks of each node; None: blocks that differ by one at most."""
    node_emulation: str = "auto"
    world_size: int | None = None
    """Walk as the first `ranks` ranks of a job of this many; None: as all of them."""
    batch_size: int = 32
    epochs: int = 1
    steps: int | None = None
    """Most steps per epoch; None: all."""
    repetitions: int = REPETITIONS
    compute_seconds: float = 0.0
    """Of each step, in model time."""
    cold: bool = False
    verify: bool = True
    launcher: str = "auto"
    seed: int = 0
    deadline_s: float = DEADLINE_S
    baseline_files: tuple[str, ...] = ()
    pfs: str | None = None
    """Mount the dataset with this preset of the emulator for the run."""
    time_scale: float | str = "auto"
    targets: int | None = None
    tiers: tuple[str, ...] = ()
    """Presets of the emulator, each mounted empty and writable on each node."""
    node_memory: int | None = None
    """Limit of a node's memory and page cache [bytes]; None: that of the machine."""
    link_rate: int | None = None
    """Rate of the link of each node, in each direction [bit/s]; None: as fast as the machine is."""
    command: tuple[str, ...] = field(default=())
    """What the user typed, for the report."""

    def __post_init__(self) -> None:
        for name in ("ranks", "nodes", "batch_size", "epochs", "repetitions"):
            self._at_least_one(name, getattr(self, name))
        for name in ("steps", "targets", "world_size"):
            if getattr(self, name) is not None:
                self._at_least_one(name, getattr(self, name))
        if self.nodes > self.ranks:
            raise option_error(
                f"--nodes: expected at most as many nodes as ranks ({self.ranks}), found {self.nodes}"
            )
        if self.ranks_per_node is not None and (
            (len(self.ranks_per_node), sum(self.ranks_per_node)) != (self.nodes, self.ranks)
            or min(self.ranks_per_node) < 1
        ):
            raise option_error(
                f"--ranks-per-node: expected {self.nodes} numbers of at least 1 that add up to {self.ranks} ranks, "
                f"found {','.join(map(str, self.ranks_per_node))}"
            )
        if self.world_size is not None and self.world_size < self.ranks:
            raise option_error(
                f"--world-size: expected at least --ranks ({self.ranks}), found {self.world_size}"
            )
        if self.link_rate is not None and (self.nodes == 1 or self.node_emulation == "environment"):
            raise option_error(
                "--link-rate: expected several nodes that are namespaces, found "
                + ("one node" if self.nodes == 1 else "--node-emulation environment")
            )
        if not 0 <= self.compute_seconds < 3600:
            raise option_error(f"--compute: expected seconds from 0 to an hour, found {self.compute_seconds}")
        if self.launcher not in LAUNCHERS:
            raise option_error(f"--launcher: expected one of {', '.join(LAUNCHERS)}; found {self.launcher!r}")
        if self.node_emulation not in EMULATIONS:
            raise option_error(
                f"--node-emulation: expected one of {', '.join(EMULATIONS)}; found {self.node_emulation!r}"
            )

    @staticmethod
    def _at_least_one(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise option_error(
                f"--{name.replace('_', '-')}: expected an integer of at least 1, found {value!r}"
            )

    @property
    def world_ranks(self) -> int:
        """Ranks of the job whose samples are dealt out."""
        return self.world_size or self.ranks

    def ranks_of_nodes(self) -> tuple[tuple[int, ...], ...]:
        """Ranks by node, in blocks."""
        if self.ranks_per_node is not None:
            edges = [0, *itertools.accumulate(self.ranks_per_node)]
        else:
            edges = [node * self.ranks // self.nodes for node in range(self.nodes + 1)]
        return tuple(tuple(range(edges[node], edges[node + 1])) for node in range(self.nodes))

    def whole_epoch(self, samples: int) -> int:
        """Return the steps of a whole epoch, the last of which is filled up."""
        return -(-samples // (self.batch_size * self.world_ranks))

    def steps_per_epoch(self, samples: int) -> int:
        """Return the steps that are taken of each epoch."""
        whole = self.whole_epoch(samples)
        return whole if self.steps is None else min(whole, self.steps)

    def check_samples(self, samples: int) -> None:
        """Refuse a dataset that is too small for the ranks.

        Raises
        ------
        OptionError
            If there are more ranks than samples, or a step takes more samples than there are.
        """
        if self.world_ranks > samples:
            raise option_error(
                f"bench: expected at least one sample for each of the {self.world_ranks} ranks, "
                f"found {samples} samples",
                "take fewer ranks, or more data",
            )
        if self.world_ranks * self.batch_size > samples:
            raise option_error(
                f"bench: expected batches of at most {samples // self.world_ranks} samples, as there are {samples} for "
                f"{self.world_ranks} ranks; found {self.batch_size}",
                "take smaller batches with --batch-size, fewer ranks, or more data",
            )
