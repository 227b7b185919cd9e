"""What storage tiers cost besides reads, and how often several ranks read the source.

Page: docs/results/tiers-daemon.md. The costs are the time to open a loader, shared memory, memory
of the daemon and of a loader, and processor time. Loaders with and without tiers take turns in each
repetition. A tier of 100,000 copied chunks is a log of as many records and sparse slabs, for a
sparse source (``crates/forebay-tier/examples/fill_log.rs``).

``open`` needs cargo, ``shared`` FUSE.
"""
