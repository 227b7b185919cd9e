"""All rows, in the order of the table."""

from bench.harness import Row
from bench.rows import cold, grouped, latency, opening, random, ranks, sequential

ROWS: tuple[Row, ...] = (
    *random.ROWS,
    *sequential.ROWS,
    *grouped.ROWS,
    *cold.ROWS,
    *ranks.ROWS,
    *latency.ROWS,
    *opening.ROWS,
)
