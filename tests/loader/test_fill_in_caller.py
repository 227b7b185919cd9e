"""A rank with one core: the thread of the script copies batches itself."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
from support import run_python

SAMPLES, COLUMNS = 4001, 300

_ONE_CORE = """
import os, sys
import forebay
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
found = []
with forebay.Loader(sys.argv[1], 10, order=sys.argv[2], seed=3, world="single", node_memory="16MiB",
                    expected_epochs=2) as loader:
    for _ in range(2):
        for batch in loader:
            (field,) = batch.values()
            assert (field == batch.indices[:, None]).all()
            found += batch.indices.tolist()
    stats = loader.stats()
print(loader.config.reading.mapping, stats["steps"], stats["own_batches"])
print(*found)
"""


@pytest.mark.parametrize("order", ["shuffle", "group"])
def test_on_one_core_the_script_fills_batches_itself(tmp_path, order):
    path = tmp_path / "x.npy"
    np.save(path, np.repeat(np.arange(SAMPLES), COLUMNS).reshape(SAMPLES, COLUMNS))
    done = run_python(_ONE_CORE, path, order)
    assert done.returncode == 0, done.stderr
    facts, ids = done.stdout.splitlines()
    mapping, steps, own = facts.split()
    if mapping != "resident":
        pytest.skip("the file just written is not in the page cache of a local file system")
    assert int(own) > int(steps) // 4
    with forebay.Loader(path, 10, order=order, seed=3, node_memory="16MiB", strategy="pread") as plain:
        expected = [number for _ in range(2) for batch in plain for number in batch.indices.tolist()]
    assert [*map(int, ids.split())] == expected
