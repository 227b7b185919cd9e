"""Figures of the papers at their scale, by simulation, beside what was published.

Page: docs/results/simulate.md. Nothing is measured: each section runs the simulator, or a scenario
of the model, and its rows are the same on every machine.
"""
