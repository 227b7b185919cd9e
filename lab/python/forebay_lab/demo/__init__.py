"""The main job on this machine, end to end: ``forebay demo``.

In order: a Caffe-style LMDB is made from scikit-learn's digits (`data`); a small numpy model
(`model`) is trained on it three times, data-parallel, by MPI ranks of this machine (`launch`,
`train`): with py-lmdb and Caffe's skipping pattern, with Forebay in the same order, with Forebay's
group order (`sources`). The page cache is emptied of the file before each run. The kernel's
counters of the ranks (`counters`) become a table (`results`) and one self-contained page (`page`).

The demo promises that the first two runs compute the same losses, bit for bit, and fails if they do
not. It does not claim that its times mean much: see the caveat it prints.
"""

from forebay_lab.demo.data import DemoError
from forebay_lab.demo.runner import main

__all__ = ["DemoError", "main"]
