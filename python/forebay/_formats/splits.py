"""The files of one split of a directory that holds several.

A split is a directory of its own in it (``d/train``), the shards of that name in a directory of
Hugging Face (``d/train-00000-of-00002.parquet``), or the files whose names begin with it
(``d/train-0.parquet``, ``d/train_1.tar``, ``d/train.h5``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from forebay._core import option_error
from forebay._formats.huggingface_directory import Found, data_files, place, visible
from forebay._paths import MAX_NAMED

__all__ = ["split_files"]


def split_files(paths: Sequence[str], split: object) -> Found:
    """Return the files of a split.

    Raises
    ------
    OptionError
        If the path is not one directory, or it has no such split.
    FormatError
        If a description in it is damaged, or shards are missing.
    """
    if not isinstance(split, str) or not split or Path(split).name != split:
        raise option_error(f"forebay.open: split=: expected the name of a split, found {split!r}")
    if len(paths) != 1 or not Path(paths[0]).is_dir():
        what = paths[0] if len(paths) == 1 else f"{len(paths)} paths"
        raise option_error(
            f"forebay.open: split= is for one directory that holds splits, found {what}",
            "name the files of the split, and leave split= out",
        )
    directory = Path(paths[0])
    below = directory / split
    if below.is_dir():
        return data_files(str(below)) or Found([below])
    if (found := data_files(str(directory), split)) is not None:
        return found
    begins = re.compile(rf"{re.escape(split)}([-_.].*)?", re.DOTALL)
    files = [path for path in visible(directory) if begins.fullmatch(path.name) and path.is_file()]
    if files:
        return Found(sorted(files, key=place))
    names = itertools.islice(sorted(path.name for path in directory.iterdir()), MAX_NAMED)
    raise option_error(
        f"forebay.open: {directory} has no split {split!r}; it holds {', '.join(names) or 'nothing'}",
        "a split is a directory in it, or files that begin with its name, such as train-00000-of-00002.parquet",
    )
