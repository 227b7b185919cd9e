"""The sections: one for each row, in the order of the page."""

from __future__ import annotations

from studies.core import cold, grouped, latency, opening, random, ranks, sequential
from studies.core.row import Row
from studies.harness.sections import Study

ROWS: tuple[Row, ...] = (
    *random.ROWS,
    *sequential.ROWS,
    *grouped.ROWS,
    *cold.ROWS,
    *ranks.ROWS,
    *latency.ROWS,
    *opening.ROWS,
)

STUDY = Study(sections={row.name: row.section() for row in ROWS}, repetitions=7, isolated=True)
