"""Mixtures: datasets that loaders draw from in fixed proportions.

A mixture is the dataset of all files of its sources, in their order. Where sources are selections,
it is a selection of these files. The engine draws from it by names, weights and numbers of samples
of the sources (``crates/forebay-plan/src/order/mixture``, docs/mixtures.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Final, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from forebay._core import OptionError, option_error
from forebay._formats.huggingface_directory import check_class_names
from forebay._sample_ids import SomeIds, sample_ids
from forebay._selection import Ids
from forebay.dataset import Dataset

__all__ = ["Mixture", "mix"]

_STOPS: Final = ("first", "all", "never")
# What the sum of the weights may differ from 1 by.
_ROUNDING: Final = 1e-9
# The engine counts weights in units of 2**-53.
_UNITS: Final = 1 << 53
# Options of `forebay.open` by which files are read. Names and types of fields are compared apart.
_OPTIONS: Final = (
    "schema",
    "database",
    "raw",
    "sample_axis",
    "manifest",
    "follow_symlinks",
    "decode",
    "nulls",
)


def mix(
    sources: Mapping[str, Dataset],
    *,
    weights: Sequence[float] | None = None,
    stop: Literal["first", "all", "never"] = "first",
) -> Mixture:
    """Mix datasets in fixed proportions (docs/mixtures.md).

    Each loader of the mixture draws from the sources in these proportions, exactly in each window
    of its stream, up to one sample with two sources and less than four with any number. The order
    of the loader is that within each source.

    Parameters
    ----------
    sources : mapping of str to Dataset
        Name → dataset, at least two, of one format and with the same fields. Selections are
        respected.
    weights : sequence of float, optional
        The share of each source, in the order of the mapping: numbers above 0 that add up to 1.
        Default: in proportion to the samples.
    stop : {"first", "all", "never"}, optional
        When an epoch ends. ``first``: before a sample would come twice. ``all``: when each sample
        has come; the samples of shorter sources come several times, in another shuffle each time.
        ``never``: it does not end. Default ``"first"``.

    Returns
    -------
    Mixture
        The dataset of all samples.

    Raises
    ------
    OptionError
        If there are fewer than two sources, their formats, fields or options differ, or weights or
        ``stop`` are not those above.
    StorageError
        If the files cannot be opened.

    Examples
    --------
    ::

        web = forebay.tokens("web-*.bin", window=1025, stride=1024, dtype="u2")
        code = forebay.tokens("code-*.bin", window=1025, stride=1024, dtype="u2")
        loader = forebay.Loader(forebay.mix({"web": web, "code": code}, weights=[0.7, 0.3]), 16)
    """
    return Mixture(sources, weights, stop)


class Mixture(Dataset):
    """Hold the samples of several datasets; :func:`forebay.mix` makes one.

    The samples of the first source have the first ids, then come those of the second one. The
    weights are those of loaders: ``mixture[i]``, :meth:`read` and ``len`` know nothing of them.
    """

    __slots__ = ("_firsts", "_given", "_sources", "_stop", "_weights")

    def __init__(self, sources: Mapping[str, Dataset], weights: Sequence[float] | None, stop: str) -> None:
        _check_sources(sources)
        if stop not in _STOPS:
            raise option_error(f"forebay.mix: stop=: expected one of {', '.join(_STOPS)}, found {stop!r}")
        self._sources, self._stop = dict(sources), stop
        counts = [len(source) for source in self._sources.values()]
        if weights is not None and (isinstance(weights, str | Mapping) or not isinstance(weights, Iterable)):
            raise option_error(
                f"forebay.mix: weights=: expected a sequence of numbers, found {type(weights).__name__}",
                "weights=[0.7, 0.3], in the order of the sources",
            )
        self._given = None if weights is None else list(weights)
        self._weights = counts if self._given is None else _checked_weights(list(self._sources), self._given)
        self._firsts = np.cumsum([0, *counts])
        options = _joint_options(self._sources)
        paths = [path for source in self._sources.values() for path in source._opened_paths]
        super().__init__(paths, **options)
        check_class_names(self.paths)
        if any(source.ids is not None for source in self._sources.values()):
            self._ids = self._joint_ids()
            self._native = self._native.select(self._ids)
            self._ids.flags.writeable = False

    def _joint_ids(self) -> Ids:
        """Return the ids of all samples among those of all files."""
        parts, first = [], 0
        for source in self._sources.values():
            ids = np.arange(len(source), dtype=np.int64) if source.ids is None else source.ids
            parts.append(first + ids)
            first += source.native.records()
        return np.concatenate(parts)

    @property
    def sources(self) -> dict[str, Dataset]:
        """Name → dataset, in the order of the samples."""
        return dict(self._sources)

    @property
    def weights(self) -> dict[str, float]:
        """Name → share of the samples that loaders deliver; they add up to 1."""
        total = sum(self._weights)
        return {name: weight / total for name, weight in zip(self._sources, self._weights, strict=True)}

    @property
    def stop(self) -> str:
        """When an epoch ends: ``first``, ``all`` or ``never``."""
        return self._stop

    def facts(self) -> dict[str, Any]:
        """Return names, samples and weights of the sources, as the engine reads them."""
        counts = np.diff(self._firsts).tolist()
        return {
            "stop": self._stop,
            "sources": [
                {"name": name, "samples": samples, "weight": weight}
                for name, samples, weight in zip(self._sources, counts, self._weights, strict=True)
            ],
        }

    def source_of(self, ids: SomeIds) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the sources of samples, and their ids there.

        Parameters
        ----------
        ids : sequence or array of int, shape (n,)
            Sample ids of the mixture, for example ``batch.indices``.

        Returns
        -------
        numbers : ndarray of int64, shape (n,)
            Numbers of the sources, from 0; ``list(mixture.sources)[number]`` is the name.
        ids : ndarray of int64, shape (n,)
            Sample ids within the sources.

        Raises
        ------
        IndexError
            If there is no such sample.
        OptionError
            If the ids are not integers in one axis; also a :class:`TypeError`.
        """
        found = sample_ids(ids, len(self), self._brief)
        numbers = np.searchsorted(self._firsts, found, side="right") - 1
        return numbers.astype(np.int64), found - self._firsts[numbers]

    def select(self, ids: Any) -> NoReturn:
        """Raise: select samples of the sources, then mix them."""
        raise _no_part("select")

    def split(self, parts: Sequence[float], *, seed: int = 0) -> NoReturn:
        """Raise: split the sources, then mix their parts."""
        raise _no_part("split")

    @property
    def _source(self) -> str:
        """The sources with their shares."""
        shares = ", ".join(f"{name} {share:.4g}" for name, share in self.weights.items())
        return f'{shares}, stop="{self._stop}"'

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the sources, so that a spawned process opens the files again."""
        return type(self), (self._sources, self._given, self._stop)


def _no_part(what: str) -> OptionError:
    return option_error(
        f"{what}: expected a dataset without weights, found a mixture",
        f"{what} its sources, then mix the parts",
    )


def _check_sources(sources: Any) -> None:
    """Raise where these are not at least two named datasets that can be mixed."""
    if not isinstance(sources, Mapping):
        raise option_error(
            f"forebay.mix: expected a mapping of name to dataset, found {type(sources).__name__}",
            'forebay.mix({"web": a, "code": b}, weights=[0.7, 0.3])',
        )
    if len(sources) < 2:
        raise option_error(
            f"forebay.mix: expected at least two sources, found {len(sources)}",
            "a loader takes a single dataset as it is",
        )
    for name, source in sources.items():
        if not isinstance(name, str) or not name:
            raise option_error(f"forebay.mix: expected a name for each source, found {name!r}")
        if isinstance(source, Mixture):
            raise option_error(
                f"forebay.mix: source {name!r} is a mixture itself",
                "mix all sources at once, with the products of the weights",
            )
        if not isinstance(source, Dataset):
            raise option_error(
                f"forebay.mix: source {name!r}: expected a dataset, found {type(source).__name__}",
                "forebay.open and forebay.tokens return datasets",
            )
    (first_name, first), *others = sources.items()
    for name, source in others:
        for what, found, expected, hint in _differences(source, first):
            raise option_error(
                f"forebay.mix: source {name!r}: {what} is {found}, in {first_name!r} {expected}", hint
            )


def _differences(one: Dataset, other: Dataset) -> Iterator[tuple[str, object, object, str]]:
    """Yield what differs between two sources: what, the value of each, and a hint."""
    if one.format != other.format:
        yield "the format", one.format, other.format, "forebay convert writes one format from another"
        return
    hint = "open both with the same options"
    for option in _OPTIONS:
        found, expected = (source._options.get(option) for source in (one, other))
        if found != expected:
            yield f"{option}= of forebay.open", repr(found), repr(expected), hint
    layouts = [_token_layout(source) for source in (one, other)]
    for option in ("window", "stride", "documents"):
        found, expected = (layout.get(option) for layout in layouts)
        if found != expected:
            yield f"{option}= of forebay.tokens", repr(found), repr(expected), hint
    fields = one.fields, other.fields
    for field in {**fields[1], **fields[0]}:
        found, expected = (_field_text(described.get(field)) for described in fields)
        if found != expected:
            yield f"field {field!r}", found, expected, "fields= of forebay.open chooses fields"
    names = [list(described) for described in fields]
    if names[0] != names[1]:
        yield "the order of the fields", names[0], names[1], "fields= of forebay.open orders fields"


def _field_text(described: tuple[str, tuple[int, ...] | None] | None) -> str:
    if described is None:
        return "missing"
    dtype, shape = described
    return f"{dtype} of varying length" if shape is None else f"{dtype} of shape {shape}" if shape else dtype


def _token_layout(source: Dataset) -> dict[str, Any]:
    layout: dict[str, Any] = json.loads(source._options.get("tokens") or "{}")
    return layout


def _joint_options(sources: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return the options with which all files are opened together."""
    options = dict(next(iter(sources.values()))._options)
    layouts = [_token_layout(source) for source in sources.values()]
    # The type of tokens may be given for some sources, where files do not say it.
    if dtype := next((layout["dtype"] for layout in layouts if layout.get("dtype")), None):
        options["tokens"] = json.dumps(layouts[0] | {"dtype": dtype})
    return options


def _checked_weights(names: list[str], weights: list[Any]) -> list[int]:
    """Return weights in units of the engine."""
    if len(weights) != len(names):
        raise option_error(
            f"forebay.mix: weights=: expected {len(names)} numbers, one for each source, found {len(weights)}"
        )
    for name, weight in zip(names, weights, strict=True):
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            hint = "leave the source out" if is_number and weight == 0 else None
            raise option_error(
                f"forebay.mix: weights=: expected a number above 0 for source {name!r}, found {weight!r}",
                hint,
            )
    total = math.fsum(weights)
    if abs(total - 1) > _ROUNDING:
        normalised = ", ".join(f"{weight / total:.12g}" for weight in weights)
        raise option_error(
            f"forebay.mix: weights=: expected a sum of 1, found {total:.12g}",
            f"weights=[{normalised}] adds up to 1",
        )
    units = [round(weight * _UNITS) for weight in weights]
    for name, weight, unit in zip(names, weights, units, strict=True):
        if not unit:
            raise option_error(
                f"forebay.mix: weights=: expected at least 2**-53 for source {name!r}, found {weight!r}"
            )
    return units
