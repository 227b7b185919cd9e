"""Simulated jobs: what a training job of any size would do to its file system, in virtual time.

In order: `places` describes a dataset by where its samples lie, `source` what else is known of a
workload or a dataset, `tiers` the storage tiers of nodes; `programs` those without a loader;
`costs` is what processors take, and `measure_costs` finds it out; `request` checks what is asked
for and makes the job of one row; `runs` has the native module simulate it, once for each seed, and
makes of each run what a repetition of the bench is; `result` puts rows and numbers of ranks
together; `table` prints them. `like` simulates the job of a bench result, and `like_table` prints
both. docs/simulate.md describes the model and its limits.
"""

from __future__ import annotations

from forebay_lab.simulate.request import Request
from forebay_lab.simulate.result import simulate

__all__ = ["Request", "simulate"]
