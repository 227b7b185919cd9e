"""Readers request a file in its order: disks that seek for each request out of order show it."""

from __future__ import annotations

import forebay
import support
from forebay_lab import pfs
from support.emulator import SPEC, needs_fuse

RECORD_BYTES = 1 << 20
# More than two dozen blocks of the longest reads.
RECORDS = 192


# Requests by turns cost dozens of seeks in every epoch; a thread that a busy machine stops while it
# asks costs some in one.
@needs_fuse
def test_a_walk_through_a_file_seeks_once_per_target(backing, points):
    with (backing / "records.bin").open("wb") as file:
        file.truncate(RECORDS * RECORD_BYTES)
    server = pfs.Server.start(backing, points, spec=SPEC | {"seek_us": 2000.0})
    data = forebay.open(points[0] / "records.bin", format="raw", record_bytes=RECORD_BYTES)
    found = []
    for _ in range(support.TRIES):
        server.drop_caches(points[0])
        server.reset()
        with forebay.Loader(data, 16, order="sequential") as loader:
            assert sum(len(batch.indices) for batch in loader) == RECORDS
        targets = server.stats()["servers"]
        found.append(sum(target["seeks"] for target in targets))
        assert found[-1] >= len(targets)
        if found[-1] <= 2 * len(targets):
            return
    raise AssertionError(f"seeks of each epoch: {found}")
