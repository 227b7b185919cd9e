"""The files of a dataset of Hugging Face, from its directory.

:func:`data_files` knows three kinds of directories, and returns anything else as it is:

1. What ``save_to_disk`` writes: ``state.json`` lists the files. ``dataset_dict.json`` instead
   stands above such directories, one for each split.
2. The cache of ``load_dataset``: ``dataset_info.json`` names the splits and their shards.
3. A clone or download of a repository: Parquet or Arrow files in it or in ``data``, as
   ``train-00000-of-00002.parquet``. So is any directory of such files whose names differ by numbers
   alone, as the ``part-0.parquet`` of Spark, Dask and pyarrow, in the order of their numbers.

What has several splits is no dataset, unless one is named, and the error names the path of each.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from forebay._core import FormatError, option_error
from forebay._paths import LEFTOVER, MAX_NAMED

__all__ = ["Found", "check_class_names", "class_names", "data_files", "place", "visible"]

_SUFFIXES = (".parquet", ".arrow")
# The number of a shard, and of all shards.
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
# What else a repository, or a job that wrote tables, has at the level of its files.
_BESIDE = re.compile(
    rf"(readme|license|licence|dataset_infos?|\.)|{LEFTOVER.pattern}",
    re.IGNORECASE,
)
# What tells shards of one dataset apart: a UUID, or digits.
_NUMBER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+)")


class Found:
    """The files of a directory.

    Attributes
    ----------
    paths : list of str
        The files, in order.
    indices : list of str
        Files of row numbers, which select rows in this order; empty for all rows.
    """

    def __init__(self, paths: Iterable[Path], indices: Iterable[Path] = ()) -> None:
        self.paths = [str(path) for path in paths]
        self.indices = [str(path) for path in indices]


def data_files(path: str, split: str | None = None) -> Found | None:
    """Return the files of a dataset of Hugging Face, or None if the path is none.

    With ``split``, those of that split, or None if there is no such split.

    Raises
    ------
    OptionError
        If the directory holds several splits.
    FormatError
        If a description in it is damaged, or shards are missing.
    """
    try:
        return _found(Path(path), split)
    except OSError:
        # To open the path as another format fails, too, with an error that names it.
        return None


def class_names(paths: list[str]) -> list[str] | None:
    """Return the names of the one ``ClassLabel`` that the description beside the files has."""
    directories = {Path(path).parent for path in paths}
    return _names_of_classes(directories.pop()) if len(directories) == 1 else None


def check_class_names(paths: list[str]) -> None:
    """Raise where the descriptions beside files differ in the names of classes."""
    directories = list(dict.fromkeys(Path(path).parent for path in paths))
    if len(directories) < 2:
        return
    named = [(one, names) for one in directories if (names := _names_of_classes(one)) is not None]
    for directory, names in named[1:]:
        if names != named[0][1]:
            raise option_error(
                f"forebay.open: {directory / 'dataset_info.json'} names the classes {_shown(names)}, that of "
                f"{named[0][0]} {_shown(named[0][1])}: one label would mean two classes",
                "cast both to one ClassLabel with datasets (cast_column), or open each separately",
            )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def _names_of_classes(directory: Path) -> list[str] | None:
    """Return the names of the one ``ClassLabel`` that a directory's description has."""
    if not (described := directory / "dataset_info.json").is_file():
        return None
    features = _described(described).get("features")
    if not isinstance(features, dict):
        return None
    labels = [one for one in features.values() if isinstance(one, dict) and one.get("_type") == "ClassLabel"]
    names = labels[0].get("names") if len(labels) == 1 else None
    return [str(name) for name in names] if isinstance(names, list) else None


def _found(directory: Path, split: str | None) -> Found | None:
    if not directory.is_dir():
        return None
    if (directory / "dataset_dict.json").is_file():
        if split is not None:  # would be a directory
            return None
        splits = _described(directory / "dataset_dict.json").get("splits", [])
        raise _several(directory, [str(directory / str(split)) for split in splits])
    if (directory / "state.json").is_file():
        return _saved(directory) if split is None else None
    if (directory / "dataset_info.json").is_file():
        return _cached(directory, split)
    return _repository(directory, split)


def _described(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: description at offset 0: expected JSON, found {error}") from error
    if not isinstance(found, dict):
        raise FormatError(
            f"{path}: description at offset 0: expected an object, found {type(found).__name__}"
        )
    return found


def _several(directory: Path, paths: list[str]) -> Exception:
    first = paths[0] if paths else str(directory)
    return option_error(
        f"forebay.open: {directory} holds several splits: {', '.join(paths) or 'none'}",
        f"open each separately, for example forebay.open({first!r}); split= names one of them",
    )


def _saved(directory: Path) -> Found:
    """Return what ``state.json`` lists."""
    state = _described(directory / "state.json")
    files = _names(directory, state, "_data_files")
    if not files:
        raise FormatError(f"{directory / 'state.json'}: _data_files: expected a list of files, found none")
    return Found(files, _names(directory, state, "_indices_files"))


def _names(directory: Path, state: dict[str, Any], key: str) -> list[Path]:
    entries = state.get(key) or []
    names: list[Any] = [entry.get("filename") if isinstance(entry, dict) else entry for entry in entries]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise FormatError(
                f"{directory / 'state.json'}: {key}: expected names of files in the directory, found {name!r}"
            )
    return [directory / name for name in names]


def _cached(directory: Path, split: str | None) -> Found | None:
    """Return the files that the cache of ``load_dataset`` has for a split, or for its only one."""
    info = _described(directory / "dataset_info.json")
    splits = info.get("splits") or {}
    name = info.get("dataset_name") or info.get("builder_name") or ""
    if not isinstance(splits, dict) or not splits:
        return None
    # Files of `map` and others lie there as well: only those of the splits count.
    tables = sorted(path for path in directory.iterdir() if _is_table(path))
    families = {
        known: family
        for known in splits
        if (family := [path for path in tables if _SHARD.sub("", path.stem) == f"{name}-{known}"])
    }
    return _chosen(directory, families, split)


def _chosen(directory: Path, families: dict[str, list[Path]], split: str | None) -> Found | None:
    """Return the files of a split, or of the only one."""
    if split is not None:
        family = families.get(split)
        return Found(_complete(family)) if family else None
    if len(families) > 1:
        raise _several(directory, [_pattern(family) for family in families.values()])
    return next((Found(_complete(family)) for family in families.values()), None)


def _repository(directory: Path, split: str | None) -> Found | None:
    """Return the files of a repository: those of a split, or of the only one."""
    inside = directory / "data"
    # Two entries tell a folder of samples, which may have millions of files, from a repository.
    if list(itertools.islice(visible(directory), 2)) == [inside] and inside.is_dir():
        directory = inside
    tables = []
    for path in visible(directory):
        if not _is_table(path):
            # With anything else in it, it is rather a folder whose files are samples.
            return None
        tables.append(path)
    families: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(tables, key=place):
        families[_stem(path)].append(path)
    return _chosen(directory, families, split)


def visible(directory: Path) -> Iterator[Path]:
    """Yield what is in a directory, without descriptions and hidden files, as it is listed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if not _BESIDE.match(entry.name):
                yield directory / entry.name


def _is_table(path: Path) -> bool:
    return path.suffix in _SUFFIXES and path.is_file()


def place(path: Path) -> list[tuple[int, str]]:
    """Return what sorts files: their numbers count as such."""
    return [(int(word) if word.isdecimal() else -1, word) for word in _NUMBER.split(path.stem)]


def _stem(path: Path) -> str:
    """Return what the files of a split have in common."""
    stem, marks = _SHARD.subn("", path.stem)
    return stem if marks else _NUMBER.sub("*", stem)


def _pattern(family: list[Path]) -> str:
    """Return a path that stands for the files of a split."""
    first = family[0]
    if len(family) == 1:
        return str(first)
    stem = f"{_stem(first)}-*" if _SHARD.search(first.stem) else _stem(first)
    return str(first.with_name(f"{stem}{first.suffix}"))


def _complete(family: list[Path]) -> list[Path]:
    """Return the shards of a split, or raise where one is missing."""
    marks = [_SHARD.search(path.stem) for path in family]
    if not all(marks):
        return family
    numbers = [(int(mark[1]), int(mark[2])) for mark in marks if mark]
    wanted = numbers[0][1]
    missing = sorted(set(range(wanted)) - {number for number, _ in numbers})
    if missing or len(numbers) != wanted:
        found = f"found {len(numbers)}" + (f" without shard {missing[0]}" if missing else "")
        raise FormatError(f"{family[0].parent}: shards of {_stem(family[0])}: expected {wanted}, {found}")
    return family
