"""The search for what is fast at thousands of ranks: its rows, at a small scale."""

from __future__ import annotations

import pytest

from studies.harness.sections import Scope
from studies.simulate import search, study


def test_each_file_system_has_a_section():
    assert set(study.PAPERS["search"]) == {f"search-{pfs}" for pfs in search.FILE_SYSTEMS}


def test_a_job_is_its_start_up_and_its_steps():
    rows = search.jobs(Scope(tiny=True), "lustre-hdd")
    assert [row["name"] for row in rows] == [*search.READING, *search.HELD]
    for row in rows:
        steps_s = 1e-3 * row["step_ms"]
        assert row["job_s"] == pytest.approx(row["startup_s"] + search.READING_STEPS * steps_s)
        # 100,000 samples, 512 of them per step.
        assert row["epoch_s"] == pytest.approx(row["startup_s"] + 196 * steps_s)
        assert row["epochs_s"] == pytest.approx(row["startup_s"] + 2 * 196 * steps_s)
        assert row["step_ms_low"] <= row["step_ms"] * (1 + 1e-9)
