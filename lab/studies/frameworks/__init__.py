"""Loaders of other projects beside Forebay: one module for each, one process per rank.

Page: docs/results/frameworks.md. In order: ``place`` (what a rank is given), ``formats`` (the same
samples in the format of each loader), ``loaders``, ``registry`` (their rows), ``rank`` (the
process), ``job`` (starts ranks and times them), ``contest`` (lets them take turns), and the
sections ``raw``, ``jpeg``, ``memory`` and ``overhead``.

Rows of packages that are not installed are skipped: ``python scripts/compared.py`` makes an
environment with all of them, ``.venv-compared``.
"""
