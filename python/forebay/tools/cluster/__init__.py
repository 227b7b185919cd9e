"""Emulated nodes: a cluster on one machine, made of Linux namespaces, without a container engine.

A node has a host name, a network, shared memory (``/dev/shm``, System V), processes and a mount
table of its own; it shares the processor, the memory and all other files with the machine. A hub,
in namespaces of its own too, holds the bridge that joins them, and is where a launcher such as
``mpiexec`` runs; a stand-in for ``ssh`` starts processes on a node. Mounts of the emulated file
system (docs/pfs.md) are seen by the nodes that they are given to and by no other: a page cache for
each node.

Everything lives in one process namespace, whose first process (``init``) ends when whoever started
the cluster closes it or dies, by whatever signal; the kernel then ends all of it: processes,
network, mounts, memory. No file is written outside.

It needs root, or user namespaces, and the programs ``unshare``, ``nsenter``, ``mount`` and ``ip``.

Sources: namespaces(7), pid_namespaces(7), unshare(1), nsenter(1), veth(4).
"""

from forebay.tools.cluster.cluster import Cluster, ClusterError, missing

__all__ = ["Cluster", "ClusterError", "missing"]
