"""Storage tiers in the loader, on an emulated file system and an emulated local drive.

Page: docs/results/tiers.md. Source bytes are those that the emulator counts. A section ends within
about five minutes on two cores. ``job`` and ``training`` are programs of their own.

Needs FUSE; ``budget`` also scikit-learn.
"""
