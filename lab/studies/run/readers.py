"""Unmodified readers of TFRecord and tar files, where everything fits."""

from __future__ import annotations

import shutil
import statistics
from functools import partial

from forebay_lab.bench.turns import in_turn
from studies.harness.sections import Row, Scope
from studies.harness.tiered import mounts
from studies.run.epochs import (
    FOLLOW,
    FROZEN,
    WHOLE,
    WITHOUT,
    Epoch,
    Mode,
    Shards,
    reader,
    run_epochs,
    total_bytes,
)

EPOCHS = 3
REPETITIONS = 2
READERS = (
    ("plain_tfrecord", "tfrecord"),
    ("package_tfrecord", "tfrecord"),
    ("plain_tar", "tar"),
    ("package_webdataset", "tar"),
)
SOURCES = (("lustre-ssd", 40.0, READERS), ("nfs", 6.0, (READERS[0], READERS[2])))
"""Source, time scale of source and tier (what two cores carry of it), and readers."""
ON_TIER = Mode("on the tier's device", None)


def readers(scope: Scope) -> list[Row]:
    """Run 3 epochs of each reader, in turns: without, with, and on the tier's device."""
    rows: list[Row] = []
    runs_of_sources = ((source, scale, *one) for source, scale, programs in SOURCES for one in programs)
    for source, scale, program, kind in runs_of_sources:
        # An open of the source costs little beside reading a shard.
        shards = Shards(kind, 4, scope.pick(48, 1) << 20)
        modes = {
            mode.name: partial(_run, source, scale, shards, program, mode)
            for mode in (WITHOUT, FOLLOW, WHOLE, FROZEN, ON_TIER)
        }
        runs = in_turn(modes, scope.pick(REPETITIONS, 1), warm_ups=0)
        data_bytes = total_bytes(shards.make())
        seconds = {
            name: [statistics.median(one[epoch].seconds for one in found) for epoch in range(EPOCHS)]
            for name, found in runs.items()
        }
        for name, found in runs.items():
            first = found[0]
            later, on_tier = (sum(seconds[one][1:]) for one in (name, ON_TIER.name))
            rows.append(
                {
                    "source": source,
                    "reader": program,
                    "mode": name,
                    **{f"seconds_{number}": value for number, value in enumerate(seconds[name], 1)},
                    **{f"reads_{number}": one.source_reads for number, one in enumerate(first, 1)},
                    **{f"metadata_{number}": one.metadata for number, one in enumerate(first, 1)},
                    "source_share_1": first[0].source_bytes / data_bytes,
                    "copying_seconds": statistics.median(one[0].copying_seconds for one in found),
                    "first_ratio": seconds[name][0] / seconds[WITHOUT.name][0],
                    "total_change": sum(seconds[name]) / sum(seconds[WITHOUT.name]) - 1,
                    "device_ratio": later / on_tier,
                }
            )
    return rows


def _run(source: str, scale: float, shards: Shards, program: str, mode: Mode) -> list[Epoch]:
    with mounts(shards.make(), scale, source=source) as made:
        if mode is not ON_TIER:
            return run_epochs(made, mode, reader(program, made.source), EPOCHS)
        own = made.tier / "data"
        shutil.copytree(made.source, own)
        return run_epochs(made, mode, reader(program, own), EPOCHS)
