"""Sections of docs/results/run.md: programs that are not changed, under `forebay run`."""
