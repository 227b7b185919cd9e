"""tar, as WebDataset has it: a member for each field of a sample, `<number>.<field>`.

Fields of bytes are members as they are; any other becomes an npy file, which WebDataset reads by
its name.
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
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

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
    return [f"{column.name!r} becomes npy files" for column in columns if not column.is_bytes]


def write(path: Path, source: Source) -> None:
    """Write one file."""
    digits = max(8, len(str(source.samples - 1)))
    number = 0
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for batch in source.batches():
            for sample in zip(*(batch[column.name] for column in source.columns), strict=True):
                for column, value in zip(source.columns, sample, strict=True):
                    _add(archive, f"{number:0{digits}d}", column, value)
                number += 1
    flush(path)


def _add(archive: tarfile.TarFile, key: str, column: Column, value: Any) -> None:
    """Write one member."""
    if column.is_bytes:
        name, content = f"{key}.{column.name}", payload(value)
    else:
        file = io.BytesIO()
        np.lib.format.write_array(file, np.asarray(value, column.dtype), allow_pickle=False)
        name, content = f"{key}.{column.name}.npy", file.getvalue()
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
