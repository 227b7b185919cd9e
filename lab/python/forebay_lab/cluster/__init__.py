"""Emulated nodes: a cluster on one machine, made of Linux namespaces, without a container engine.

A node has its own host name, network, shared memory (``/dev/shm``, System V), processes and mount
table; it shares the processor, the memory and all other files with the machine. A hub, also in
namespaces of its own, holds the bridge that joins the nodes, and runs launchers such as
``mpiexec``; a stand-in for ``ssh`` starts processes on a node. Only the nodes that a mount of the
emulated file system (docs/pfs.md) is for see it, so each node has its own page cache.

All processes are in one process namespace. Its first process (``init``) ends when the process that
started the cluster closes it or dies, by any signal. The kernel then ends the rest: processes,
network, mounts, memory. The cluster writes no file outside.

Requires root or user namespaces, and the programs ``unshare``, ``nsenter``, ``mount`` and ``ip``.

Sources: namespaces(7), pid_namespaces(7), unshare(1), nsenter(1), veth(4).
"""

from forebay_lab.cluster.cluster import Cluster, ClusterError, missing

__all__ = ["Cluster", "ClusterError", "missing"]
