"""What `forebay run` costs before the program starts: its own start, staging, and memory."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from forebay import _native
from forebay_lab.ranks.memory import smaps
from studies.harness import daemon, small_files
from studies.harness.sections import DIRECTORY, Row, Scope
from studies.run.epochs import FOREBAY

PAIRS = 21
FILES = 100_000
FILES_OF_DIRECTORY = 1_000
FILE_BYTES = 100
PROGRAM = "/bin/true"
# In memory: another device than that of the sources.
MEMORY = "/dev/shm"


def start(scope: Scope) -> list[Row]:
    """Start a program that does nothing, with and without, in turns."""
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as tier,
        tempfile.TemporaryDirectory(dir=DIRECTORY) as source,
    ):
        words = [*FOREBAY, "run", "--tier", f"{tier}:64MiB", "--source", source, "--", PROGRAM]
        for name, is_kept in (("daemon is started", False), ("daemon is running", True)):
            added = []
            kept = contextlib.closing(session(Path(tier), Path(source), "64MiB")) if is_kept else None
            with kept or contextlib.nullcontext():
                for _ in range(scope.pick(PAIRS, 3)):
                    if not is_kept:
                        daemon.stop()
                    added.append(_seconds(words) - _seconds([PROGRAM]))
            daemon.stop()
            rows.append({"daemon": name, "pairs": len(added), "added_seconds": statistics.median(added)})
    return rows


def session(tier: Path, source: Path, size: str) -> _native.RunSession:
    """Open a run as `forebay run` does."""
    from forebay.tools.run.command_line import Arguments
    from forebay.tools.run.served import open_session, settings

    wanted = settings(Arguments(tiers=(f"{tier}:{size}",), sources=(str(source),)), {})
    return open_session(wanted)


def private_bytes() -> int:
    """Return the private memory of the tier daemon."""
    found = smaps(daemon.pid() or "")
    return found["Private_Dirty"] + found["Private_Clean"]


def _seconds(words: list[str]) -> float:
    begun = time.monotonic()
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun


def stage(scope: Scope) -> list[Row]:
    """Stage many small files from a local file system; the scan before finds them in memory."""
    count = scope.pick(FILES, 2_000)
    source = (DIRECTORY / "run" / f"many-{count}").resolve()
    if small_files.make(
        source, count, FILES_OF_DIRECTORY, "{:08}.bin", lambda number: b"%-*d" % (FILE_BYTES, number)
    ):
        # Files of the last seconds are not copied.
        time.sleep(2.1)
    scans = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as tier:
        for _ in range(scope.pick(5, 2)):
            run = session(Path(tier), source, "1GiB")
            try:
                before = private_bytes()
                begun = time.monotonic()
                run.stage()
                while run.progress()["scanned_files"] < count:
                    time.sleep(0.002)
                scans.append(time.monotonic() - begun)
                while not (done := run.progress())["is_done"]:
                    time.sleep(0.05)
                staged = time.monotonic() - begun
                if done["problem"]:
                    raise RuntimeError(done["problem"])
                table = run.table.stat()
                memory = private_bytes() - before
            finally:
                run.close()
                daemon.stop()
        # The first walk fills the cache of the file system.
        scan_seconds = statistics.median(scans[1:])
    return [
        {
            "files": count,
            "scan_seconds": scan_seconds,
            "last_staging_seconds": staged,
            "table_bytes_per_file": table.st_blocks * 512 / count,
            "daemon_bytes_per_file": memory / count,
        }
    ]
