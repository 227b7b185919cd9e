"""A slow disk: the blkio controller of cgroups v1 limits a process's reads of a block device.

Unthrottled, a virtual disk is cached by its host and proves nothing. The limit holds for buffered
and for direct reads, within about 10 %, and binds processes, so the measured one is a child that
joins the group first. Needs root and cgroup v1; anything else skips the row with its reason.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from studies.harness.sections import SkipError

_ROOT = Path("/sys/fs/cgroup/blkio")


def device_of(path: Path) -> str:
    """Return the major and minor number of the disk of a path, as the controller expects them."""
    number = path.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    entry = Path("/sys/dev/block", device)
    if not entry.exists():
        raise SkipError(f"{path} is not on a block device (device {device})")
    entry = entry.resolve()
    if (entry / "partition").exists():
        return (entry.parent / "dev").read_text().strip()
    return device


@contextlib.contextmanager
def group(path: Path, bytes_per_s: int) -> Iterator[Path]:
    """Make a control group that limits reads of the disk of `path`; remove it at the end."""
    device = device_of(path)
    directory = _ROOT / f"forebay-bench-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as error:
        raise SkipError(f"no blkio control group (cgroup v1, root): {error}") from error
    try:
        try:
            (directory / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_s}")
        except OSError as error:
            raise SkipError(f"the blkio controller refuses a limit on device {device}: {error}") from error
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    """A group can be removed when its last member is gone, which takes a moment."""
    for _ in range(50):
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return


def join(directory: Path) -> None:
    """Put this process into the group."""
    (directory / "cgroup.procs").write_text(str(os.getpid()))
