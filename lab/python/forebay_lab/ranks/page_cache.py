"""The page cache of a file: fill it, drop it, and check how much is left.

`drop` asks the kernel to drop clean pages that no process has mapped (posix_fadvise(2)); this is
advice, and pages that another process holds stay. `resident_share` probes single pages with
nonblocking reads (preadv2(2), RWF_NOWAIT), which fetch nothing; on file systems without such reads
it returns None.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PAGE_BYTES = 4096

PROBES = 256
"""Pages that `resident_share` looks at: a share is known to about 3 %."""


_READ_BYTES = 8 << 20


def warm(file: Path) -> None:
    """Bring a file into the page cache, in large reads."""
    with file.open("rb", buffering=0) as opened:
        block = bytearray(_READ_BYTES)
        while opened.readinto(block):
            pass


def drop(file: Path) -> None:
    """Ask the kernel to forget the pages of a file."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def resident_share(file: Path) -> float | None:
    """Return the share of a file's pages in the page cache, from evenly spread probes.

    None where the kernel does not show that.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        pages = -(-os.fstat(descriptor).st_size // _PAGE_BYTES)
        probes = min(pages, PROBES)
        if probes == 0:
            return 0.0
        # A probe that finds its page makes the kernel think of sequential reading otherwise.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        found = sum(_is_resident(descriptor, pages * probe // probes) for probe in range(probes))
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            return None
        raise
    finally:
        os.close(descriptor)
    return found / probes


def _is_resident(descriptor: int, page: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], page * _PAGE_BYTES, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
