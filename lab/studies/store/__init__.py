"""The store of samples in the memory of nodes, and orders that keep samples where they are.

Page: docs/results/store.md. Nodes are emulated, and so are their file system and the local drives
of their tiers. Source bytes are those that the emulator counts. ``rank`` is the program of a rank
of ``jobs``; ``learn`` and ``own_samples`` are programs under MPI.

All sections need FUSE, MPI and emulated nodes; ``transfers``, ``gets`` and ``fairness`` also cargo.
``tensorflow`` runs in the environment of the framework tests, ``.venv-frameworks``.
"""
