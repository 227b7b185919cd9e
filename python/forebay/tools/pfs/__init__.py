"""The emulated parallel file system: a directory mounted so that it takes the time that a large one would.

    from forebay.tools import pfs

    server = pfs.Server.start("data", ["node0", "node1"], preset="lustre-hdd", time_scale="auto")
    ...                                        # read node0/train.lmdb as on node 0 of a cluster
    print(server.stats()["nodes"][0]["read_bytes"])
    server.end()

Each mount is one node with a page cache of its own; all mounts of a directory share the modelled
servers. What is modelled, and what the kernel's FUSE client cannot imitate, is told in docs/pfs.md.
"""

from __future__ import annotations

from forebay.tools.pfs.mounts import Mount, find, list_mounts, remove_stale
from forebay.tools.pfs.server import Server, unmount

__all__ = ["Mount", "Server", "find", "list_mounts", "remove_stale", "unmount"]
