"""Sections of docs/results/store.md."""
