"""Loaders of other projects beside Forebay: one file for each, one process per rank.

In order: ``place`` (what a rank is given), ``formats`` (the same samples in the format of each
loader), one module per loader, ``registry`` (their rows), ``rank`` (the process), ``job`` (starts
ranks and times them), and the sections ``raw``, ``jpeg`` and ``memory``.
"""
