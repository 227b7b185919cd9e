"""Figures of the papers at their scale, by simulation, beside what was published.

Page: docs/results/simulate.md. Nothing is measured: each section runs the simulator, and its
rows are the same on every machine.
"""
