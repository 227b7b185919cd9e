"""A tier for 56 % of the data: large shards in sequence, and small files by forked workers.

The bound is what reading alone takes: the first epoch as without a tier, later ones from the tier's
device for the share that it holds, and from the source for the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from studies.harness.sections import Row, Scope
from studies.harness.tiered import HELD, mounts
from studies.run.epochs import (
    FOLLOW,
    FROZEN,
    WITHOUT,
    Epoch,
    Mode,
    Shards,
    quota,
    reader,
    run_epochs,
    total_bytes,
)

TIME_SCALE = 6.0
LONG, SHORT = 10, 3


@dataclass(frozen=True)
class Pattern:
    """How a framework reads."""

    name: str
    program: str
    workers: Sequence[int]
    shards: Shards


def partial(scope: Scope) -> list[Row]:
    """Source bytes, reads and time of 3 and of 10 epochs, with a tier for 56 % and without."""
    patterns = (
        Pattern(
            "large shards, as TensorFlow",
            "plain_tfrecord",
            (),
            Shards("tfrecord", 25, scope.pick(10, 1) << 20),
        ),
        Pattern(
            "small files by 4 forked workers, as PyTorch",
            "shuffled_files",
            (4,),
            Shards("bin", scope.pick(2000, 100), scope.pick(114_660, 20_000)),
        ),
    )
    rows: list[Row] = []
    for pattern in patterns:
        size = quota(total_bytes(pattern.shards.make()), HELD)
        for epochs in (SHORT, scope.pick(LONG, SHORT + 1)):
            without = _run(pattern, WITHOUT, epochs)
            device = _run(pattern, replace(WITHOUT, name="device"), 2)
            for mode in (FOLLOW, FROZEN):
                served = _run(pattern, replace(mode, tier_size=size), epochs)
                name = {"pattern": pattern.name, "mode": mode.name, "epochs": epochs}
                rows += _rows(name, without, served, device[-1].seconds)
    return rows


def _run(pattern: Pattern, mode: Mode, epochs: int) -> list[Epoch]:
    with mounts(pattern.shards.make(), TIME_SCALE) as made:
        directory = made.source
        if mode.name == "device":
            directory = made.tier / "data"
            shutil.copytree(made.source, directory)
        return run_epochs(made, mode, reader(pattern.program, directory, *pattern.workers), epochs)


def _rows(name: Row, without: list[Epoch], served: list[Epoch], device_seconds: float) -> list[Row]:
    """One row for all epochs together, and one for each."""

    def ratio(key: str, begin: int = 0) -> float:
        first, second = (sum(getattr(one, key) for one in found[begin:]) for found in (served, without))
        return float(first / second)

    bound = without[0].seconds + sum(HELD * device_seconds + (1 - HELD) * one.seconds for one in without[1:])
    saved, most = 1 - ratio("seconds"), 1 - bound / sum(one.seconds for one in without)
    whole: Row = {
        **name,
        "later_bytes_ratio": ratio("source_bytes", 1),
        "later_reads_ratio": ratio("source_reads", 1),
        "saved": saved,
        "bound": most,
        "of_bound": saved / most,
        "is_whole": True,
    }
    return [
        whole,
        *(
            {
                **name,
                "epoch": number,
                "is_whole": False,
                "without_seconds": plain.seconds,
                "seconds": tiered.seconds,
                "copying_seconds": tiered.copying_seconds,
                "bytes_ratio": tiered.source_bytes / plain.source_bytes,
                "reads_ratio": tiered.source_reads / plain.source_reads,
                "metadata_ratio": tiered.metadata / plain.metadata,
            }
            for number, (plain, tiered) in enumerate(zip(without, served, strict=True), 1)
        ),
    ]
