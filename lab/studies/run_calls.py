"""The figures of docs/results/run-calls.md: ``python lab/studies/run_calls.py [--save]``.

A program under the preload library makes each call through the library and past it, in turns. The
sources have a file table of 1,000,000 records, and their copies are in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from sections import DIRECTORY, Row, run_sections

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 1_000_000
FEW_RECORDS = 1_000
# In memory: another device than that of the sources.
MEMORY = Path("/dev/shm")


def calls(tiny: bool) -> list[Row]:
    """Time that the preload library adds to a call."""
    for words in (
        ["-p", "forebay-preload", "--profile", "preload", "--lib"],
        ["-p", "forebay-preload", "--release", "--example", "call_costs"],
        ["-p", "forebay-table", "--release", "--example", "copy_files"],
    ):
        subprocess.run(["cargo", "build", "-q", *words], cwd=ROOT, check=True)
    examples = ROOT / "target/release/examples"
    library = ROOT / "target/preload/libforebay_preload.so"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as memory,
        tempfile.TemporaryDirectory(dir=DIRECTORY) as directory,
    ):
        source, outside, foreign = (
            Path(directory) / "data/file",
            Path(directory) / "outside",
            Path(memory) / "f",
        )
        source.parent.mkdir()
        for path in (source, outside, foreign):
            path.write_bytes(bytes(100_000))
        table, level = Path(memory) / "table", Path(memory) / "level"
        filling = str(FEW_RECORDS if tiny else RECORDS)
        subprocess.run(
            [examples / "copy_files", "make", table, level, source.parent, "--fill", filling], check=True
        )
        environment = {**os.environ, "LD_PRELOAD": str(library), "FOREBAY_TABLE": str(table)}
        words = [examples / "call_costs", foreign, outside.resolve(), source]
        output = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


if __name__ == "__main__":
    run_sections(__doc__, "run-calls", {"calls": calls}, {}, bool)
