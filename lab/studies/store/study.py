"""The sections."""

from __future__ import annotations

from studies.harness.sections import Study
from studies.harness.tiered import own_daemon
from studies.store.adapters import tensorflow
from studies.store.local_tiers import local_tiers
from studies.store.serving import compute, memory
from studies.store.shares import remote, sizes
from studies.store.storage import iterations, storage
from studies.store.streaming import opportunistic
from studies.store.training import training
from studies.store.transfers import fairness, gets, transfers

STUDY = Study(
    sections={
        "local-tiers": local_tiers,
        "transfers": transfers,
        "gets": gets,
        "fairness": fairness,
        "storage": storage,
        "iterations": iterations,
        "sizes": sizes,
        "bytes": remote,
        "opportunistic": opportunistic,
        "memory": memory,
        "compute": compute,
        "training": training,
        "tensorflow": tensorflow,
    },
    prepare=own_daemon,
)
