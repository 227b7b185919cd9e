"""The sections."""

from __future__ import annotations

from functools import partial

from studies.async_io.accuracy import accuracy
from studies.async_io.coded import gzip
from studies.async_io.exposed import APPLICATIONS, PLACES, exposed
from studies.async_io.formats import SIZES, formats_limit
from studies.async_io.indexing import index
from studies.async_io.warm import warm
from studies.harness.sections import Study

EXPOSED = {
    f"exposed-{preset}-{name}": partial(exposed, preset=preset, name=name)
    for preset in PLACES
    for name in APPLICATIONS
}
FORMATS_LIMIT = {f"formats-limit-{size}": partial(formats_limit, size=size) for size in SIZES}

STUDY = Study(
    sections={
        **EXPOSED, **FORMATS_LIMIT, "warm": warm, "gzip": gzip, "index": index, "accuracy": accuracy,
    },
    groups={"exposed": tuple(EXPOSED), "formats-limit": tuple(FORMATS_LIMIT)},
)  # fmt: skip
