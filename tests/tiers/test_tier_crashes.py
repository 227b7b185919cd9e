"""Kill -9 of the tier daemon and of ranks at any moment: no wrong byte is served or left behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from typing import Any

import numpy as np
import pytest

import support
from forebay import _native
from support.ranks.filling import fill, made, read_epoch
from support.tiering import SAMPLE_BYTES, tier

ROUNDS_PER_TEST = 10
# Python 3.11 preloads only what is installed; a rank imports the rest, which is little.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["numpy", "pytest", "forebay", "forebay.loader"])


class Job:
    """Ranks of one node that copy."""

    def __init__(self, name: str, ranks: int, **options: Any) -> None:
        self.pipe, other = FORKS.Pipe()
        environment = {name: value for name, value in os.environ.items() if name.startswith("FOREBAY_")}
        self.ranks = [
            FORKS.Process(
                target=fill,
                args=(other, environment, {"rank": rank, "size": ranks, "job": name}),
                kwargs=options,
                daemon=True,
            )
            for rank in range(ranks)
        ]
        for rank in self.ranks:
            rank.start()

    def wait(self) -> None:
        """Wait for a first batch."""
        assert self.pipe.poll(support.DEADLINE_S)

    def end(self) -> list[int | None]:
        """Kill all ranks; return their exit codes."""
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.join()
        self.pipe.close()
        return [rank.exitcode for rank in self.ranks]


@pytest.mark.parametrize("seed", range(20 if support.LONG else 2))
@pytest.mark.full
def test_what_kills_leave_behind_verifies_and_serves_right_bytes(
    daemon, tier_data, tmp_path, in_memory, seed
):
    rng = random.Random(seed)
    sources = {
        str(tier_data.whole / "x.raw"): 16 << 10,
        str(tier_data.formats["raw"]): SAMPLE_BYTES,
    }
    expected = {path: np.fromfile(path, "uint8").reshape(-1, length) for path, length in sources.items()}
    for number in range(ROUNDS_PER_TEST):
        place = rng.choice([tmp_path, in_memory]) / "tier"
        # A tier is as an earlier crash left it, or empty; some have no room for both sources.
        if rng.random() < 0.2 and place.exists():
            daemon.kill()
            shutil.rmtree(place)
        level = tier(place, rng.choice(["64MiB", "17MiB", "5MiB"]))
        path = rng.choice(list(sources))
        options = {
            "path": path,
            "record_bytes": sources[path],
            "levels": [level],
            "order": rng.choice(["sequential", "shuffle"]),
        }
        job = Job(f"crash-{os.getpid()}-{seed}-{number}", rng.choice([1, 2]), **options)
        try:
            if rng.random() < 0.8:
                job.wait()
            time.sleep(rng.uniform(0.0, 0.05))
            victim = rng.choice(["daemon", "rank", "both"])
            if victim != "rank":
                daemon.kill()
            if victim != "daemon":
                rng.choice(job.ranks).kill()
            time.sleep(rng.uniform(0.0, 0.05))
        finally:
            codes = job.end()
        # A rank that found a wrong byte ends with 1.
        assert set(codes) <= {0, -9}
        if rng.random() < 0.5:
            daemon.kill()
        text = _native.verify_tier(place)
        assert text is None or '"damaged":[]' in text
        with made(**options, world="single") as loader:
            read_epoch(loader, expected[path])
            assert loader.config.tiers is not None
    # Ranks that are killed while they meet leave their socket behind.
    daemon.kill()
    for left in daemon.runtime.iterdir():
        left.unlink()
