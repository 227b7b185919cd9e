"""The emulated parallel file system: mounts a directory at the speed of a large one.

    from forebay_lab import pfs

    server = pfs.Server.start("data", ["node0", "node1"], preset="lustre-hdd", time_scale="auto")
    ...                                        # read node0/train.lmdb as on node 0 of a cluster
    print(server.stats()["nodes"][0]["read_bytes"])
    server.end()

    with pfs.mounted("data", preset="nfs") as (server, node):     # one node, for a while
        ...

Each mount is one node with its own page cache; all mounts of a directory share the modelled
servers. docs/pfs.md describes the model and its limits.
"""

from __future__ import annotations

from forebay_lab.pfs.mounts import Mount, find, list_mounts, remove_stale
from forebay_lab.pfs.server import Server, mounted, unmount

__all__ = ["Mount", "Server", "find", "list_mounts", "mounted", "remove_stale", "unmount"]
