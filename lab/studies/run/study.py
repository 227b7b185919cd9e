"""The sections."""

from __future__ import annotations

from studies.harness.sections import Study
from studies.harness.tiered import own_daemon
from studies.run.partial import partial
from studies.run.processes import processes
from studies.run.readers import readers
from studies.run.starting import stage, start

STUDY = Study(
    sections={
        "readers": readers, "partial": partial, "processes": processes, "start": start, "stage": stage,
    },
    prepare=own_daemon,
)  # fmt: skip
