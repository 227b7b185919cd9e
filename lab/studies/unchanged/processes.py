"""Several programs on a node: what is read from the source over all of them."""

from __future__ import annotations

from sections import Row
from tiering.study import Study, mounts
from unchanged.partial import TIME_SCALE
from unchanged.study import FOLLOW, WHOLE, WITHOUT, Shards, reader, run_epochs, total_bytes

PROCESSES, WORKERS, EPOCHS = 4, 4, 3


def processes(study: Study) -> list[Row]:
    """Let 4 processes with 4 forked workers each read all files, each in its own order."""
    directory = Shards("bin", study.pick(1000, 100), study.pick(114_660, 20_000)).make()
    data_bytes = total_bytes(directory)
    rows: list[Row] = []
    for mode in (WITHOUT, FOLLOW, WHOLE):
        with mounts(directory, TIME_SCALE) as made:
            program = reader("shuffled_files", made.source, WORKERS, PROCESSES)
            found = run_epochs(made, mode, program, EPOCHS)
        rows.append(
            {
                "mode": mode.name,
                **{
                    f"source_share_{number}": one.source_bytes / data_bytes
                    for number, one in enumerate(found, 1)
                },
                "source_share": sum(one.source_bytes for one in found) / data_bytes,
            }
        )
    return rows
