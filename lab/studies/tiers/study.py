"""The sections."""

from __future__ import annotations

from studies.harness.sections import Study
from studies.harness.tiered import own_daemon
from studies.tiers.budget import budget
from studies.tiers.fitting import first_epoch, fits
from studies.tiers.nodes import nodes, sharing
from studies.tiers.partial import first_touch, half

STUDY = Study(
    sections={
        "fits": fits,
        "first-epoch": first_epoch,
        "half": half,
        "first-touch": first_touch,
        "nodes": nodes,
        "sharing": sharing,
        "budget": budget,
    },
    prepare=own_daemon,
)
