"""Rows: what ``--strategies a,b@order,…`` asks for.

A row is ``strategy@order``. A strategy is a preset of the engine, whatever
``forebay.Loader(strategy=)`` takes, or a baseline, which has one order and no other. ``store``, or
a parameter ``store=SIZE``, is the option of that name of the loader. A comma also stands inside
``forebay:access=pread,readers=2`` and ``group:samples=512,window=4``: a part that begins with
``name=`` belongs to the one before it. ``ladder`` stands for the rows of the paper on LMDBIO, each
of which removes one cost of the one before, with the default last. A row ``strategy@order+NAME``
runs in the surroundings NAME (``surroundings``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import forebay
from forebay._core import OptionError, did_you_mean, option_error
from forebay.options import resolve
from forebay_lab.bench.baselines import Baseline
from forebay_lab.bench.surroundings import Surroundings
from forebay_lab.strategies import PRESETS, locate_of
from forebay_lab.strategies import strategy as strategy_named

__all__ = ["LADDER", "Row", "parse"]

_CONTINUES = re.compile(r"^\w+=")

_CURSORS = ("cursor", "handoff")
"""Ways of finding records that go from one to the next."""

_WALKS = ("sequential", "contiguous")
"""Orders that a cursor can take."""
_DEFAULT_WALK = "sequential"

_STORE = "store"

LADDER = (
    "pylmdb-skipping",
    "lmdb",
    "lmm",
    "lmm-dm",
    "lmm-dio",
    "lmm-dio-prov",
    "lmm-dio-prov-coal",
    "lmm-dio-prov-coal-stag",
    "forebay",
)
"""What ``ladder`` stands for, all in the order of the paper's figures (Pumma et al., Sec. 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: a strategy in an order."""

    strategy: str
    order: str
    baseline: Baseline | None = None
    """None: a preset of the engine."""
    label: str = ""
    """Name of its surroundings; empty without any."""
    surroundings: Surroundings = field(default_factory=Surroundings)

    @property
    def computes(self) -> bool:
        """Whether it computes where samples lie, which takes a recipe of the dataset."""
        return self.baseline is None and locate_of(loader_options(self.strategy)["strategy"]) == "provenance"

    @property
    def crosses(self) -> bool:
        """Whether its nodes talk to each other: of cursors, an index, or turns."""
        if self.baseline is not None:
            return False
        strategy = loader_options(self.strategy)["strategy"]
        return locate_of(strategy) in ("handoff", "scan") or strategy.stagger is not None

    @property
    def name(self) -> str:
        """``strategy@order``, and ``+NAME`` of its surroundings."""
        return f"{self.strategy}@{self.order}" + (f"+{self.label}" if self.label else "")


def loader_options(text: str) -> dict[str, Any]:
    """Return the options of a loader that the strategy of a row stands for.

    ``store``, or the parameter ``store=SIZE`` of any strategy, is the option ``store`` of the
    loader; all else is its strategy.

    Raises
    ------
    OptionError
        If there is no such strategy, or a parameter is not valid.
    """
    name, _, details = text.partition(":")
    store, kept = ("auto" if name == _STORE else None), []
    for part in filter(None, details.split(",")):
        key, _, value = part.partition("=")
        if key == _STORE:
            store = value
        else:
            kept.append(part)
    name = "forebay" if name == _STORE else name
    strategy = strategy_named(f"{name}:{','.join(kept)}" if kept else name)
    return {"strategy": strategy, "store": store}


def parse(
    text: str,
    order: str,
    baselines: Mapping[str, Baseline],
    surroundings: Mapping[str, Surroundings] | None = None,
    more_orders: Collection[str] = (),
) -> tuple[Row, ...]:
    """Read a list of rows.

    Parameters
    ----------
    text
        ``strategy[@order],…``
    order
        Order of the engine's rows that name none; one that walks with a cursor takes ``sequential``
        where this is none that a cursor can take.
    baselines
        All there are, by name.
    surroundings
        All there are, by name; each has to be used.
    more_orders
        Orders that rows may have besides those that the engine knows by name.

    Raises
    ------
    OptionError
        If a strategy or an order is not known, or a row stands there twice; the message names those
        that there are.
    """
    rows: list[Row] = []
    known = surroundings or {}
    for part in _parts(text):
        part, plus, label = part.partition("+")
        if plus and label not in known:
            raise option_error(
                f"--strategies: {part}+{label}: no surroundings are called {label!r}",
                "define them with --environment or --wrapper",
            )
        strategy, _, asked = part.partition("@")
        row = _row(strategy, asked, order, baselines, more_orders)
        rows.append(replace(row, label=label, surroundings=known[label]) if plus else row)
    if unused := set(known) - {row.label for row in rows}:
        raise option_error(
            f"--strategies: expected a row in the surroundings {min(unused)}, found none",
            f"name one, such as {rows[0].strategy if rows else 'forebay'}+{min(unused)}",
        )
    names = [row.name for row in rows]
    if not rows:
        raise option_error("--strategies: expected at least one strategy, found none")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise option_error(f"--strategies: expected each row once, found {twice} twice")
    return tuple(rows)


def _is_of_the_paper(name: str, strategy: forebay.Strategy) -> bool:
    return locate_of(strategy) in _CURSORS or name in LADDER[1:-1]


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if piece == "ladder":
            parts += [f"{name}@{_DEFAULT_WALK}" for name in LADDER]
        elif _CONTINUES.match(piece) and parts:
            parts[-1] += f",{piece}"
        elif piece:
            parts.append(piece)
    return parts


def _row(
    strategy: str,
    asked: str,
    order: str,
    baselines: Mapping[str, Baseline],
    more_orders: Collection[str],
) -> Row:
    if (baseline := baselines.get(strategy)) is not None:
        if asked not in {"", baseline.order}:
            raise option_error(
                f"--strategies: {strategy} delivers the order {baseline.order} and no other, found {asked!r}"
            )
        return Row(strategy=strategy, order=baseline.order, baseline=baseline)
    name = strategy.partition(":")[0]
    presets = (*PRESETS, _STORE)
    if name not in presets:
        raise option_error(
            f"--strategies: unknown strategy {strategy!r}{did_you_mean(strategy, [*presets, *baselines])}",
            f"of the engine: {', '.join(presets)}; other programs: {', '.join(sorted(baselines))}",
        )
    try:
        options = loader_options(strategy)
        found = options["strategy"]
        if not asked:
            asked = _DEFAULT_WALK if _is_of_the_paper(name, found) and order not in _WALKS else order
        checked_order = {} if asked in more_orders else {"order": asked}
        resolve({**checked_order, "store": options["store"]}, {})
    except OptionError as error:
        raise option_error(f"--strategies: {strategy}: {error}") from error
    if locate_of(found) in _CURSORS and asked not in _WALKS:
        raise option_error(
            f"--strategies: {strategy} goes from record to record, in one of the orders {', '.join(_WALKS)}; found {asked!r}"
        )
    return Row(strategy=strategy, order=asked)
