"""The figures of Monarch: epochs of its setups, and hits of caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.harness.sections import Scope
from studies.simulate import eviction, monarch
from studies.simulate.monarch_values import MONARCH

# Jobs of minutes are simulated, in seconds each.
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def scope(tmp_path_factory: pytest.TempPathFactory) -> Scope:
    return Scope(tiny=True, directory=tmp_path_factory.mktemp("studies"))


def of(rows, size):
    return {row["name"]: row for row in rows if row["data_gib"] == size}


def total(row):
    return sum(row[f"epoch_{number}_min"] for number in (1, 2, 3))


def test_a_tier_that_holds_all_is_read_from_the_second_epoch_on(scope: Scope):
    rows = monarch.tensorflow(scope)
    small, large = of(rows, 100), of(rows, 200)
    assert list(small) == list(monarch.SETUPS[100])
    assert list(large) == list(monarch.SETUPS[200])
    for row in rows:
        assert row["total_min"] == pytest.approx(total(row))
        lustre = (small if row["data_gib"] == 100 else large)["Lustre"]
        if row["name"] != "Lustre":
            assert row["saved"] == pytest.approx(1 - row["total_min"] / lustre["total_min"], abs=0.001)
    data_gib = small["no tier"]["source_gib"] / monarch.EPOCHS
    assert small["Monarch"]["source_gib"] == pytest.approx(data_gib, rel=0.02)
    assert small["Local"]["source_gib"] is None
    assert small["Cache"]["epoch_1_min"] == small["Lustre"]["epoch_1_min"]
    assert small["Cache"]["epoch_2_min"] == small["Local"]["epoch_2_min"]
    # 115 GiB of 3 million samples: each later epoch reads 41 %.
    of_data = large["Monarch"]["source_gib"] / large["no tier"]["source_gib"] * monarch.EPOCHS
    assert of_data == pytest.approx(1 + 2 * 0.41, abs=0.03)


def test_dali_waits_for_page_faults_of_the_shared_file_system(scope: Scope):
    small = of(monarch.dali(scope), 100)
    assert small["Lustre"]["total_min"] > 3 * small["Local"]["total_min"]
    assert small["Monarch"]["epoch_3_min"] < 0.5 * small["Monarch"]["epoch_1_min"]
    assert small["Monarch"]["published_saved"] == pytest.approx(1 - 20.0 / 77.3, abs=0.001)


def test_curves_show_the_epochs_that_a_tier_makes_faster(scope: Scope):
    rows = monarch.rates(scope)
    assert {row["name"] for row in rows} == set(monarch.SETUPS[200])
    for setup in monarch.SETUPS[200]:
        found = [row for row in rows if row["name"] == setup]
        assert [row["part"] for row in found] == list(range(monarch.PARTS * monarch.EPOCHS))
        assert [row["epoch"] for row in found[:: monarch.PARTS]] == pytest.approx(
            [1 / 24, 1 + 1 / 24, 2 + 1 / 24]
        )
        first, *_, last = (row["samples_per_second"] for row in found[1:])
        # Only a tier makes later epochs faster.
        assert (last > 1.3 * first) == (setup == MONARCH)


def test_a_cache_with_eviction_hits_less_than_one_without():
    # The paper's example: four files, room for two.
    assert eviction.hits(iter([[0, 1, 2, 3], [0, 1, 2, 3]]), 2, evicts=True) == [0, 0]
    assert eviction.hits(iter([[0, 1, 2, 3], [3, 1, 0, 2]]), 2, evicts=False) == [0, 0.5]
    assert eviction.hits(iter([[0, 1, 2, 3], [3, 2, 0, 1]]), 2, evicts=True) == [0, 0.5]
    rows = {(row["name"], row["order"]): row for row in eviction.eviction(Scope(tiny=True))}
    for (name, order), row in rows.items():
        assert row["hits_1"] == 0
        if name == "no eviction":
            assert row["hits_2"] == row["hits_3"] == pytest.approx(0.575, abs=0.001)
        else:
            assert row["hits_2"] < rows["no eviction", order]["hits_2"]


def test_specs_are_written_where_data_are_kept(scope: Scope):
    path = Path(monarch.ssd(scope))
    assert path.parent == scope.directory / "specs"
    assert "target_bytes_per_second = 550000000.0" in path.read_text()
