"""Strategies of papers, beside those of :class:`forebay.Strategy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, ClassVar

import forebay
from forebay.options import AUTO, PER_NODE, PER_RANK, strategy_of
from forebay.options import PRESETS as OF_FOREBAY
from forebay_lab import _native

__all__ = ["PRESETS", "Strategy", "locate_of", "strategy"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    **OF_FOREBAY,
    "lmdb": {"locate": "cursor", "access": "mmap"},
    "lmm": {"locate": "cursor", "access": "mmap", "readers": PER_NODE, "coalesce": 1},
    "lmm-dm": {"locate": "handoff", "access": "mmap", "readers": PER_NODE, "coalesce": 1},
    "lmm-dio": {"locate": "scan", "access": "pread", "readers": PER_NODE, "coalesce": 1},
    "lmm-dio-prov": {"locate": "provenance", "access": "pread", "readers": PER_NODE, "coalesce": 1},
    "lmm-dio-prov-coal": {"locate": "provenance", "access": "pread", "readers": PER_NODE},
    "lmm-dio-prov-coal-stag": {
        "locate": "provenance",
        "access": "pread",
        "readers": PER_NODE,
        "stagger": AUTO,
    },
    "async": {"access": "pread", "readers": PER_RANK, "prefetch_windows": 1},
    "async-db": {"access": "pread", "readers": PER_RANK, "prefetch_windows": 2},
}
"""Presets by name: those of Forebay, the steps of LMDBIO from ``lmm`` on in the order of the paper,
and ``async`` and ``async-db`` of Lee et al."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(forebay.Strategy):
    """A strategy that may locate samples as the programs of the LMDBIO paper do.

    Parameters
    ----------
    locate : {"index", "cursor", "handoff", "scan", "provenance"}
        How the extent of a sample is found. ``index``: by the sidecar. ``provenance``: by an index
        that is computed from the recipe of the container's layout; without a recipe, by the sidecar
        (one of ``Loader.config.fallbacks``). The others exist for comparison. ``cursor``: by a walk
        from record to record, as programs do that use LMDB's library. The readers of a node walk
        for all its ranks; where ``readers`` is not given, each rank walks for itself and copies
        from its own mapping. This needs ``access="mmap"`` and the order ``sequential`` or
        ``contiguous``. ``handoff``: by such a walk of one root of the job at a time, which hands
        its cursor to the next; ``sequential`` only. ``scan``: by an index that one process builds
        with such a walk when the loader is made.
    options
        Those of :class:`forebay.Strategy`.

    Raises
    ------
    OptionError
        If a value is none of those, or two values contradict each other.
    """

    NATIVE: ClassVar[ModuleType] = _native

    locate: str = "index"


def strategy(value: str | Mapping[str, Any]) -> forebay.Strategy:
    """Return a strategy by name, such as ``lmm-dio``, with parameters as in ``lmm:readers=2``.

    A mapping has the name as ``name``, and the parameters. What Forebay has itself runs in its own
    native module.

    Raises
    ------
    OptionError
        If there is none of this name, or a parameter is not valid.
    """
    found = strategy_of("strategy=", value, PRESETS, Strategy)
    assert isinstance(found, Strategy)
    if found.locate != "index":
        return found
    return forebay.Strategy(**{one.name: getattr(found, one.name) for one in fields(forebay.Strategy)})


def locate_of(strategy: forebay.Strategy) -> str:
    """Return how a strategy finds samples."""
    return strategy.locate if isinstance(strategy, Strategy) else "index"
