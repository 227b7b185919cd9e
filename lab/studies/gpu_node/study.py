"""The sections."""

from __future__ import annotations

from studies.frameworks.overhead import overhead
from studies.frameworks.raw import SECTIONS as RAW
from studies.gpu_node.images import images
from studies.harness.sections import Study

STUDY = Study(sections={"images": images, "overhead": overhead, **RAW}, groups={"raw": tuple(RAW)})
