"""Unmodified programs under ``forebay run``, with a tier on an emulated local drive.

Page: docs/results/run.md. What reaches the source is what the emulated file system counts.
``programs`` has the programs, ``epochs`` runs them epoch by epoch.

All sections but ``start`` and ``stage`` need FUSE.
"""
