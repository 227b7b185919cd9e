"""Accelerator utilisation that DLIO reports, by data loader and number of accelerators.

Page: docs/results/dlio.md. A section is a workload of MLPerf Storage, scaled (``workloads``). DLIO
generates the data, which is kept for later runs. Each data loader then trains with 1, 2, 4, 8 and
16 accelerators, until it no longer passes. Before that, DLIO's own data loaders train on two with
other numbers of workers, and the best one is taken.

Needs FUSE, MPI and the environment of the framework tests: start it with
``.venv-frameworks/bin/python``.
"""
