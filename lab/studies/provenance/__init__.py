"""What a recipe of offsets costs: its bytes, the time and memory to compute all offsets.

Page: docs/results/provenance.md. And the time to make a sidecar of them. Nothing is read: the
datasets are the published ones by their sizes. Each case runs in a new process.

Needs cargo.
"""
