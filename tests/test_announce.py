"""Readers side by side ask for a file in its order: disks that seek for each request out of turn tell."""

# Fixtures are imported by their names, which arguments of tests then repeat.
# ruff: noqa: F811

from __future__ import annotations

import forebay
from emulator import SPEC, backing, needs_fuse, points  # noqa: F401 - two are fixtures
from forebay import pfs

RECORD_BYTES = 1 << 20
# More than eight blocks of the longest reads: from the ninth on, two readers are tried.
RECORDS = 192
EPOCHS = 3


@needs_fuse
def test_a_walk_through_a_file_seeks_once_per_target(backing, points):
    with (backing / "records.bin").open("wb") as file:
        file.truncate(RECORDS * RECORD_BYTES)
    server = pfs.Server.start(backing, points, spec=SPEC | {"seek_us": 2000.0})
    data = forebay.open(points[0] / "records.bin", format="raw", record_bytes=RECORD_BYTES)
    for _ in range(EPOCHS):
        server.cold(points[0])
        with forebay.Loader(data, 16, order="sequential") as loader:
            assert sum(len(batch.indices) for batch in loader) == RECORDS
    targets = server.stats()["servers"]
    # A thread that is stopped while it asks may cost the odd one more; requests by turns cost dozens.
    assert EPOCHS * len(targets) <= sum(target["seeks"] for target in targets) <= 2 * EPOCHS * len(targets)
