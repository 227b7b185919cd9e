"""What reaches the source of a data set with storage tiers, counted by an emulated file system."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
import support
import tier_support
from emulator import needs_fuse
from forebay.tools import pfs
from ranks import tiers
from tier_support import settle, tier

pytestmark = needs_fuse

MIB = 1 << 20
CHUNKS = 16
SAMPLE_BYTES = 16 << 10
OPENING = {"format": "raw", "record_bytes": SAMPLE_BYTES}


@pytest.fixture(scope="module")
def backing(tmp_path_factory):
    """A directory with a file of whole chunks, old enough to be copied."""
    directory = tmp_path_factory.mktemp("source")
    values = np.random.default_rng(1).integers(0, 256, CHUNKS * MIB, "uint8")
    (directory / "x.raw").write_bytes(values.tobytes())
    settle([directory])
    return directory


@pytest.fixture
def server(backing, points):
    """An emulated file system without delays; both mounts have the data."""
    server = pfs.Server.start(backing, points[:1], preset="none")
    len(forebay.open(points[0] / "x.raw", **OPENING))
    server.drop_caches(points[0])
    server.reset()
    yield server
    server.end()


def read_bytes(server):
    """Return what was read since the last call, and let nothing of it come from memory again."""
    found = sum(node["read_bytes"] for node in server.stats()["nodes"])
    server.drop_caches(server.mounts[0])
    server.reset()
    return found


def options(*levels, **more):
    return {
        "batch_size": 16,
        "order": "shuffle",
        "memory": "512MiB",
        "tiers": list(levels),
        "strategy": forebay.Strategy(access="pread", direct=True),
        **more,
    }


def run(pool, server, ranks=1, **more):
    path = str(server.mounts[0] / "x.raw")
    return pool.run(ranks, tiers.deliver, path=path, opening=OPENING, **more)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("direct", [False, True])
def test_data_that_fit_are_read_once(pool, daemon, server, tmp_path, ranks, direct):
    strategy = forebay.Strategy(access="pread", direct=direct)
    made = options(tier(tmp_path / "tier"), batch_size=16 // ranks, strategy=strategy)
    run(pool, server, ranks, options=made, epochs=1)
    first = read_bytes(server)
    run(pool, server, ranks, options=made, epochs=2)
    print("RATIO", first / (CHUNKS * MIB), read_bytes(server))
