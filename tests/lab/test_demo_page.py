"""The demo's results: table, JSON and page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from forebay import FormatError
from forebay_lab import report
from forebay_lab.demo import results
from forebay_lab.report import columns, data, demo, page
from support import documented_keys
from support.report_page import Page

KEYS = {column.key for column in columns.DEMO}

PFS = {
    "reads": 4321,
    "read_bytes": 4321 * 98304,
    "mean_read_bytes": 98304.0,
    "sequential_reads": 4000,
    "queue_seconds": 12.34,
    "max_in_flight": 77,
    "metadata": 9,
    "sizes": {"98304": 4321},
    "lateness_share": 0.004,
    "missed_deadlines": False,
}


def outcome(
    *, differing_step: int | None = None, emulated: bool = False, late: bool = False
) -> results.Outcome:
    times = {
        "startup_seconds": 0.1,
        "exposed_seconds": 0.5,
        "compute_seconds": 1.0,
        "skew_seconds": 0.25,
        "communication_seconds": 0.25,
    }
    usage = {
        "cpu_seconds": 1.5, "minor_faults": 1000, "major_faults": 10, "voluntary_switches": 5, "involuntary_switches": 6,
    }  # fmt: skip
    rank = {
        "epochs": [times, times],
        "usage": usage,
        "thread": usage,
        "read_call_bytes": 10,
        "read_calls": 3,
        "storage_bytes": 10**6,
    }
    losses = [float(loss) for loss in np.geomspace(2.3, 0.01, 400)]
    runs = []
    for name in ("pylmdb", "sequential", "group"):
        own = list(losses)
        if name == "sequential" and differing_step is not None:
            own[differing_step] += 1e-9
        job = {
            "losses": own,
            "accuracies": [0.5, 0.97],
            "ranks": [rank] * 4,
            "facts": {"explain": "1 < 2 & so on"},
        }
        counted = {**PFS, "missed_deadlines": late} if emulated else None
        runs.append(results.RunResult.read(name, f"Run {name}", job, counted))
    told = {"spec": {"name": "tape", "latency_us": 500.0}, "time_scale": 2.5, "limit_mib_s": 1000.0}
    return results.Outcome(
        samples=200_000, ranks=4, batch_size=125, epochs=2, file_bytes=10**7, prepared_seconds=1.0, held_out_samples=359,
        runs=tuple(runs), pfs=told if emulated else None, pfs_reason=None if emulated else "no <such> device",
    )  # fmt: skip


def values(**options) -> dict:
    """The JSON object of an outcome, as a file holds it."""
    return json.loads(json.dumps(results.as_json(outcome(**options))))


def test_equal_losses_are_called_identical_and_a_difference_is_named():
    assert outcome().identical
    assert "400" in demo.verdict(values())
    assert not outcome(differing_step=7).identical
    found = values(differing_step=7)
    assert "step 7 " in demo.verdict(found)
    found["runs"][1]["losses"] = found["runs"][0]["losses"][:9]
    assert "step 9 " in demo.verdict(found)


@pytest.mark.parametrize("emulated", [False, True])
def test_table_and_page_have_every_figure_of_their_storage(emulated: bool):
    found = values(emulated=emulated)
    table, page = results.table(found), Page(report.render(found))
    shown = {key for _, key in page.cells}
    # Counters of the emulator are shown where there is one, those of block devices elsewhere.
    others = {"storage_bytes"} if emulated else {key for key in KEYS if key.startswith("pfs_")}
    assert shown == KEYS - others
    for column in columns.DEMO:
        assert (re.search(rf"^{re.escape(column.title)}( \[|  )", table, re.MULTILINE) is not None) == (
            column.key in shown
        ), column.key
    run = found["runs"][0]
    cells = {key: page.cells[run["title"], key] for key in shown}
    assert cells["wall_seconds"] == run["wall_seconds"]
    assert cells["accuracy"] == 0.97
    assert cells["training_thread_faults"] == 4 * 1010
    assert cells["switches"] == 4 * 11
    if emulated:
        assert {cells[f"pfs_{key}"] for key in ("reads", "read_bytes", "queue_seconds")} == {
            PFS[key] for key in ("reads", "read_bytes", "queue_seconds")
        }
    for words in (demo.storage(found), demo.caveat(found)):
        assert words in table
    assert demo.caveat(found) in page.text("rows")


def test_late_replies_are_told_in_table_and_page():
    for late in (False, True):
        found = values(emulated=True, late=late)
        table = results.table(found)
        assert "share of the time of requests that was lateness of the emulator: 0.4 % (Run pylmdb)" in table
        assert ("not valid" in table) == late
        page = Page(report.render(found))
        assert ("warnings" in page.sections) == late
        assert not late or "not valid" in page.text("warnings")
        assert "0.4 % (Run group)" in page.text("run")


@pytest.mark.parametrize("emulated", [False, True])
def test_the_page_has_every_figure_and_fetches_nothing(emulated: bool):
    text = report.render(values(emulated=emulated))
    page = Page(text)
    figures = ["epochs", "ranks", "losses", "sizes"]
    assert [page.sections[key][0] for key in figures] == ["figure"] * 3 + [
        "figure" if emulated else "missing"
    ]
    assert [key for key in page.sections if key != "warnings"] == [*figures, "rows", "method", "run"]
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "link"})
    for word in ("http:", "https:", "url(", "@import"):
        assert word not in text
    assert "nan" not in page.text("rows")
    assert "1 < 2 & so on" in page.text("method")
    for name in ("Run pylmdb", "Run sequential", "Run group"):
        assert all(name in page.text(key) for key in figures[: 3 + emulated])


def test_the_parts_of_each_epoch_are_drawn_and_start_up_with_the_first():
    found = Page(report.render(values())).text("epochs")
    assert found.count(": start-up") == 3, "one per run"
    assert found.count(": exposed") == 6, "one per run and epoch"


def test_a_result_in_a_file_gives_the_same_page(tmp_path: Path):
    found = values(emulated=True)
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(found | {"output": "demo.html"}))
    assert page.render(data.read(path)) == report.render(found)
    path.write_text(json.dumps(found | {"version": 1}))
    with pytest.raises(FormatError, match="version"):
        data.read(path)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("runs", lambda found: found.update(runs=found["runs"][:1])),
        ("runs[1].title", lambda found: found["runs"][1].update(title=3)),
        ("runs[2].losses[1]", lambda found: found["runs"][2].update(losses=[0.5, "x"])),
        ("runs[0].accuracies", lambda found: found["runs"][0].pop("accuracies")),
        ("pfs.time_scale", lambda found: found.update(pfs={"spec": {}})),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(key: str, change):
    found = values(emulated=True)
    change(found)
    with pytest.raises(FormatError) as caught:
        report.render(found)
    assert f"key {key}:" in str(caught.value)


def test_the_parts_of_the_wall_time_add_up():
    found = results.as_json(outcome())["runs"][0]
    parts = ("exposed_seconds", "compute_seconds", "skew_seconds", "communication_seconds")
    assert found["wall_seconds"] == pytest.approx(sum(found[name] for name in parts))
    assert found["training_seconds"] == pytest.approx(found["startup_seconds"] + 2 * found["wall_seconds"])
    for name in parts:
        assert found[name] == pytest.approx(np.mean([epoch[name] for epoch in found["by_epoch"]]))
    json.dumps(found)


def test_exactly_the_keys_of_the_result_are_documented():
    found = values(emulated=True)
    run = found["runs"][0]
    # The command adds the path of the page.
    assert set(documented_keys("`forebay demo --json`")) == found.keys() | {"output"}
    assert set(documented_keys("A run")) == run.keys()
    assert set(documented_keys("What has reached the emulated file system")) == run["pfs"].keys()
