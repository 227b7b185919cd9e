"""tar, as WebDataset has it: a member for each field of a sample, `<number>.<field>`.

Fields of bytes are members as they are; any other becomes an npy file, which WebDataset reads by
its name. Files with labels become what loaders of images know by name: `<path>.jpg`, or what its
first bytes say, and `<path>.cls`, the label in digits.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay._core import option_error
from forebay.tools.convert.columns import Column, payload
from forebay.tools.convert.files import ending_of, flush
from forebay.tools.convert.source import KEY, Source

__all__ = ["check", "write"]


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse names that are no extensions; tell which fields become npy files."""
    for column in columns:
        # WebDataset takes what stands behind the first dot, in small letters.
        if not re.fullmatch(r"[^./A-Z]+(\.[^./A-Z]+)*", column.name):
            raise option_error(
                f"tar holds fields under names of files; {column.name!r} cannot be an extension there",
                "small letters, without slashes or empty parts, are kept as they are",
            )
    notes = [f"{column.name!r} becomes npy files" for column in columns if not column.is_bytes]
    if _are_labelled(columns):
        notes = ["'label' becomes the text of .cls files, and 'data' files with the ending of the first one"]
    return notes


def _are_labelled(columns: Sequence[Column]) -> bool:
    """Whether samples are bytes and a label, as those of a folder with classes are."""
    fields = {column.name: column for column in columns}
    if fields.keys() != {"data", "label"}:
        return False
    label = fields["label"]
    return fields["data"].is_bytes and label.shape == () and label.dtype.kind in "iu"


def write(path: Path, source: Source) -> None:
    """Write one file."""
    if _are_labelled(source.columns):
        _write_labelled(path, source)
        return
    digits = max(8, len(str(source.samples - 1)))
    number = 0
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for batch in source.batches():
            for sample in zip(*(batch[column.name] for column in source.columns), strict=True):
                for column, value in zip(source.columns, sample, strict=True):
                    _add(archive, f"{number:0{digits}d}", column, value)
                number += 1
    flush(path)


def _write_labelled(path: Path, source: Source) -> None:
    """Write files and their labels, under the names of the files where they have some."""
    digits = max(8, len(str(source.samples - 1)))
    number, ending, before = 0, "", ""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for batch in source.batches():
            names = batch.get(KEY) if isinstance(batch, dict) else None
            for place, (value, label) in enumerate(zip(batch["data"], batch["label"], strict=True)):
                content = payload(value)
                # All samples have the same fields: the first one names them.
                ending = ending or ending_of(content)
                key = f"{number:0{digits}d}" if names is None else _key(names[place])
                if key == before:
                    key = f"{key}-{number:0{digits}d}"
                before = key
                _add_member(archive, f"{key}{ending}", content)
                _add_member(archive, f"{key}.cls", b"%d" % int(label))
                number += 1
    flush(path)


def _key(name: str) -> str:
    """Return the key of a file: its path without the ending, and without dots, which end a key."""
    above, slash, last = name.rpartition("/")
    return f"{above}{slash}{Path(last).stem.replace('.', '_') or '_'}"


def _add(archive: tarfile.TarFile, key: str, column: Column, value: Any) -> None:
    """Write one member."""
    if column.is_bytes:
        name, content = f"{key}.{column.name}", payload(value)
    else:
        file = io.BytesIO()
        np.lib.format.write_array(file, np.asarray(value, column.dtype), allow_pickle=False)
        name, content = f"{key}.{column.name}.npy", file.getvalue()
    _add_member(archive, name, content)


def _add_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
