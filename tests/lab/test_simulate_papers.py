"""Sections of the simulate study: what programs that read groups and stores come to."""

from __future__ import annotations

import pytest

from forebay_lab.bench import workload as workloads
from studies.harness.sections import Scope
from studies.simulate import async_io, deepio
from studies.simulate.group_reads import Fit, Machine, Reading, epoch

# Jobs of many processes are simulated, in seconds each.
pytestmark = pytest.mark.full

TINY = Scope(tiny=True)
RATE = 277e6
GPUS = 64


def cosmoflow(reading: Reading, compute_seconds: float):
    return epoch(
        workloads.load("cosmoflow-async"), async_io.CORI, Fit(stream_bytes_per_second=RATE), reading, ranks=GPUS,
        global_batch=256, compute_seconds=compute_seconds, seeds=1,
    )  # fmt: skip


def test_a_buffer_is_exposed_but_for_what_a_second_buffer_hides():
    """64 processes read a 64th of the data each, 16 samples at once."""
    workload = workloads.load("cosmoflow-async")
    reads = workload.samples / GPUS * workload.sample.bytes / RATE
    one_buffer = cosmoflow(Reading(group_samples=16), 20.0)
    assert one_buffer.exposed == pytest.approx(reads, rel=0.01)
    two_buffers = cosmoflow(Reading(group_samples=16, ahead=1), 20.0)
    assert two_buffers.exposed == pytest.approx(reads - 20.0, rel=0.1)
    assert cosmoflow(Reading(group_samples=16, ahead=1), 30.0).exposed == 0


def test_a_read_costs_its_time_once_for_each_group():
    """35.3 million samples, one by one and by 609, of which only the time per read is felt."""
    workload = workloads.load("neuron-inverter")
    machine = Machine(preset="lustre-ssd", node_ranks=1, node_memory=1 << 36)
    for group in (1, 609):
        found = epoch(
            workload, machine, Fit(read_seconds=0.5), Reading(group_samples=group), ranks=16, global_batch=16 * group,
            compute_seconds=0.0, seeds=1,
        )  # fmt: skip
        assert found.exposed == pytest.approx(0.5 * workload.samples / group / 16, rel=0.05)


@pytest.mark.parametrize(
    ("simulated", "published", "agrees"),
    [(1.25, 1.0, True), (0.75, 1.0, True), (1.26, 1.0, False), (0.1, 0.0, True), (0.11, 0.0, False)],
)
def test_a_quarter_of_the_published_time_agrees_and_a_hundredth_of_computation_is_none(
    simulated, published, agrees
):
    assert async_io.agrees(simulated, published, compute=10.0) == agrees


def test_the_tables_have_the_programs_beside_what_is_published():
    rows = async_io.tables(TINY)
    assert [row["name"] for row in rows] == list(async_io.STRATEGIES)
    assert {row["table"] for row in rows} == {"V"}
    for row in rows:
        published = row["published_seconds"]
        assert row["ratio"] == (pytest.approx(row["exposed_seconds"] / published) if published else None)
        parts = ("exposed_seconds", "skew_seconds", "compute_seconds")
        assert row["epoch_seconds"] == pytest.approx(sum(row[part] for part in parts))
    sample, _, group, two_buffers = (row["exposed_seconds"] for row in rows)
    assert sample > 500 * group
    assert two_buffers == 0


def test_each_fitted_number_has_the_rows_that_it_is_fitted_to():
    for job, row in zip(async_io.JOBS, async_io.fits(Scope()), strict=True):
        assert row["table"] == job.table
        numbers = [row[key] for key in ("rate_mb_s", "read_ms") if row[key] is not None]
        assert bool(numbers) == bool(job.fitted)
        assert len(numbers) <= len(job.fitted)


def test_a_file_at_a_time_is_hidden_by_a_second_buffer():
    one, two = async_io.buffers(TINY)
    assert (one["hidden"], one["published_hidden"]) == ("no", None)
    assert (two["hidden"], two["published_hidden"]) == ("yes", "yes")


def test_a_store_fills_the_links_and_tensorflow_takes_what_its_api_costs():
    rows = {row["name"]: row for row in deepio.bandwidth(TINY)}
    assert set(rows) == set(deepio.SYSTEMS)
    # Of eight nodes, an eighth of the bytes cross no link.
    links = deepio.NODES * 12_500 / (1 - 1 / deepio.NODES)
    assert rows["store, RDMA"]["rate_mb_s"] == pytest.approx(links, rel=0.03)
    assert rows["store, TCP"]["rate_mb_s"] < links
    # Four targets of 3 GB/s, and what the read-ahead of clients has begun before.
    assert rows["BeeGFS, N to N"]["rate_mb_s"] == pytest.approx(12_000, rel=0.05)
    assert rows["store, RDMA"]["published_over_beegfs"] == deepio.OVER_BEEGFS
    beegfs, store = deepio.training(TINY)
    steps = -(-50_000 // (128 * store["nodes"]))
    assert store["iteration_ms"] == pytest.approx(1e3 * store["epoch_seconds"] / steps)
    # 128 elements at 0.1 ms.
    assert store["iteration_ms"] >= 12.8
    assert beegfs["first_epoch_seconds"] > beegfs["last_epoch_seconds"]
    assert beegfs["over_store"] == pytest.approx(beegfs["epoch_seconds"] / store["epoch_seconds"])
