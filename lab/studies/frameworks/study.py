"""The sections."""

from __future__ import annotations

from studies.frameworks.jpeg import jpeg
from studies.frameworks.memory import memory
from studies.frameworks.overhead import overhead
from studies.frameworks.raw import SECTIONS as RAW
from studies.harness.sections import Study

STUDY = Study(
    sections={"overhead": overhead, **RAW, "jpeg": jpeg, "memory": memory}, groups={"raw": tuple(RAW)}
)
