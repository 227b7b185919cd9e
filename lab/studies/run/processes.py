"""Several programs on a node: what is read from the source over all of them."""

from __future__ import annotations

from studies.harness.sections import Row, Scope
from studies.harness.tiered import mounts
from studies.run.epochs import FOLLOW, WHOLE, WITHOUT, Shards, reader, run_epochs, total_bytes
from studies.run.partial import TIME_SCALE

PROCESSES, WORKERS, EPOCHS = 4, 4, 3


def processes(scope: Scope) -> list[Row]:
    """Let 4 processes with 4 forked workers each read all files, each in its own order."""
    directory = Shards("bin", scope.pick(1000, 100), scope.pick(114_660, 20_000)).make()
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
