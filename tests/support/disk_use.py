"""The most disk that the tests use at any moment, watched while they run and limited.

What a test or a process of it writes goes to the temporary directory of the session,
:func:`own_temporary_directory`. A thread adds up the blocks of the files there, so that sparse
files count as what they take. Where tests run in several processes, each of these watches the
directory of all. It never looks beyond a mount point: a look would be a request to the emulated
file system, which counts them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The most that all tests together may take at once [bytes].
MAX_BYTES = 2 << 30

# Pause between two looks [s]; longer where a look takes long, so that looking takes at most a
# fiftieth of the time.
PAUSE_S = 0.25
SHARE = 50

# openat2(2), which alone can be told not to cross a mount point; the number is that of all
# architectures.
_OPENAT2 = 437
_RESOLVE_NO_XDEV = 0x01
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def own_temporary_directory() -> Path:
    """Make a temporary directory for this session and its processes; its path fits sockets."""
    path = Path(tempfile.mkdtemp(prefix="f"))
    # Other users get through it to what a test opens to them, as in the directory above it.
    path.chmod(0o711)
    tempfile.tempdir = os.environ["TMPDIR"] = str(path)
    return path


@contextlib.contextmanager
def _directory(parent: int, name: str) -> Iterator[int | None]:
    """Open a directory unless something is mounted on it."""
    how = _How(_FLAGS, 0, _RESOLVE_NO_XDEV)
    opened = _libc.syscall(_OPENAT2, parent, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how))
    if opened < 0:
        yield None
        return
    try:
        yield opened
    finally:
        os.close(opened)


def taken_bytes(directory: int) -> int:
    """Return the bytes of blocks that the files below an open directory take."""
    total = 0
    # What goes meanwhile takes nothing any more.
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                with _directory(directory, entry.name) as below:
                    total += 0 if below is None else taken_bytes(below)
            else:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


class DiskUse(threading.Thread):
    """Watches a directory in the background."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="disk-use", daemon=True)
        self.path = path
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._now = self._highest = 0
        #: What each test took more than there was when it began [bytes], by name.
        self.by_test: dict[str, int] = {}
        #: The most at once [bytes], and in which test.
        self.most: tuple[int, str] = (0, "")
        self._test, self._before = "", 0

    def run(self) -> None:
        """Look again and again."""
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            begun = time.monotonic()
            self._look()
            pause_s = max(PAUSE_S, SHARE * (time.monotonic() - begun))

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                found = taken_bytes(directory)
            finally:
                os.close(directory)
            with self._lock:
                self._now = found
                self._highest = max(self._highest, found)

    def begin(self, test: str) -> None:
        """Count for a test from now on."""
        with self._lock:
            self._test, self._before = test, self._now
            self._highest = self._now

    def end(self) -> int:
        """Return the most at once since the test began."""
        with self._lock:
            self.by_test[self._test] = self._highest - self._before
            self.most = max(self.most, (self._highest, self._test))
            return self._highest

    def now(self) -> int:
        """Return what was taken at the last look."""
        with self._lock:
            return self._now

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()

    def seen(self) -> dict[str, list[object] | dict[str, int]]:
        """Return what `take` of another watch takes, in plain types."""
        return {"most": list(self.most), "by_test": self.by_test}

    def take(self, seen: dict[str, Any]) -> None:
        """Add what a watch of the same directory in another process has seen."""
        self.most = max(self.most, tuple(seen["most"]))
        self.by_test |= seen["by_test"]

    def report(self, count: int) -> Iterator[str]:
        """Say what the most was, and which tests took most."""
        taken, test = self.most
        yield f"at most {taken / 1e6:,.0f} MB of {MAX_BYTES / 1e6:,.0f} MB at once, in {test}"
        for name in sorted(self.by_test, key=self.by_test.__getitem__, reverse=True)[:count]:
            yield f"{self.by_test[name] / 1e6:8,.0f} MB  {name}"


# Where the session keeps its watch.
KEY = pytest.StashKey[DiskUse]()
