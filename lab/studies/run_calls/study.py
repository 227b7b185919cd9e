"""The one section."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from studies.harness import cargo
from studies.harness.sections import DIRECTORY, Row, Scope, Study

RECORDS = 1_000_000
FEW_RECORDS = 1_000
# In memory: another device than that of the sources.
MEMORY = Path("/dev/shm")


def calls(scope: Scope) -> list[Row]:
    """Time that the preload library adds to a call."""
    cargo.build("--package", "forebay-preload", "--profile", "preload", "--lib")
    library = cargo.TARGET / "preload/libforebay_preload.so"
    costs = cargo.example("forebay-preload", "call_costs")
    copy_files = cargo.example("forebay-table", "copy_files")
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
        filling = str(FEW_RECORDS if scope.tiny else RECORDS)
        subprocess.run([copy_files, "make", table, level, source.parent, "--fill", filling], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(library), "FOREBAY_TABLE": str(table)}
        words = [costs, foreign, outside.resolve(), source]
        output = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


STUDY = Study(sections={"calls": calls})
