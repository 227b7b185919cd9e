"""Baselines: real programs around unmodified libraries, used as people use them, a file each.

To add one, write a module with a tuple `BASELINES` of `Baseline` objects, here or in a file of your
own that is passed with ``forebay bench --baseline FILE`` (docs/bench.md has a whole example).
`Baseline.open` is called once in each rank and returns a `Source`: something that walks an epoch
and delivers, per step, the sample ids and the records, copied out of the library's own memory, as
a training script needs them. Everything else (ranks, times, counters, digests) is done around it.

A baseline imports its library inside `open`, and names it in `modules`: most installations lack
most of the libraries. A row whose library or format is not there is reported as skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from forebay._core import option_error
from forebay_lab.bench.facts import Facts

__all__ = ["Baseline", "Place", "Source", "Step", "find"]

Step = tuple[Any, Any]
"""Sample ids (integers), and as many records: bytes, memoryviews or arrays, one per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank stands, and what it is to read."""

    paths: tuple[str, ...]
    """The dataset, as this rank's node sees it."""
    samples: int
    batch_size: int
    rank: int
    ranks: int
    node: int
    local_rank: int
    local_ranks: int
    seed: int
    scratch: Path
    """A directory of this rank alone, removed after the run."""
    job: str
    """A text that the ranks of this run share with no other run."""

    @property
    def path(self) -> str:
        """The dataset, where it is one path."""
        (path,) = self.paths
        return path

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last is filled up from the start."""
        return -(-self.samples // (self.batch_size * self.ranks))


class Source(Protocol):
    """Batches of one rank."""

    def epoch(self, number: int) -> Iterator[Step]:
        """Iterate one epoch, with equal steps on all ranks; each batch is valid until the next."""

    def facts(self) -> dict[str, Any]:
        """Return what the source reports of itself; may be empty."""

    def close(self) -> None:
        """Let go of files and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A program that the bench can run."""

    name: str
    order: str
    """The order it delivers, by name.

    Rows of one order must deliver the same samples in each step; a unique order has its own name.
    """
    about: str
    open: Callable[[Place], Source]
    modules: tuple[str, ...] = ()
    """Modules it imports, before any clock runs: a library's import is no cost of the storage."""
    formats: tuple[str, ...]
    """Formats of datasets that it reads, as `Facts.format` names them."""
    several: bool = False
    """Whether it reads datasets of several files."""

    def missing(self, facts: Facts) -> str | None:
        """Return why it cannot run on a dataset or in this installation; None if it can."""
        if facts.format not in self.formats:
            return f"reads {' or '.join(self.formats)}, the dataset is {facts.format}"
        if len(facts.paths) > 1 and not self.several:
            return f"reads one file, the dataset has {len(facts.paths)}"
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"the package {module} is not installed"
        return None

    def load(self) -> None:
        """Import what it needs."""
        for module in self.modules:
            importlib.import_module(module)


def find(files: Sequence[str] = ()) -> dict[str, Baseline]:
    """Return all baselines by name: those of this package and of the given files.

    Raises
    ------
    OptionError
        If a file is not there, or holds no baselines.
    """
    found: dict[str, Baseline] = {}
    for module in pkgutil.iter_modules(__path__):
        for baseline in importlib.import_module(f"{__name__}.{module.name}").BASELINES:
            found[baseline.name] = baseline
    for file in files:
        for baseline in _load(file):
            found[baseline.name] = baseline
    return found


def _load(file: str) -> tuple[Baseline, ...]:
    if not Path(file).is_file():
        raise option_error(f"--baseline {file}: expected a Python file, found none")
    name = f"forebay_baseline_{Path(file).stem}"
    specification = importlib.util.spec_from_file_location(name, file)
    if specification is None or specification.loader is None:
        raise option_error(f"--baseline {file}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        told = traceback.format_exception_only(error)[-1].strip()
        raise option_error(f"--baseline {file}: cannot be imported: {told}") from error
    baselines = getattr(module, "BASELINES", ())
    if not baselines or not all(isinstance(one, Baseline) for one in baselines):
        raise option_error(
            f"--baseline {file}: expected a tuple BASELINES of forebay_lab.bench.baselines.Baseline, found {baselines!r}"
        )
    return tuple(baselines)
