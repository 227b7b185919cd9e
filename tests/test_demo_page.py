"""The demo's results: figures, table, JSON and page."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest

from forebay.tools.demo import page, results

PFS = {
    "reads": 4321,
    "read_bytes": 4321 * 98304,
    "mean_read_bytes": 98304.0,
    "sequential_reads": 4000,
    "queue_seconds": 12.34,
    "max_in_flight": 77,
    "metadata": 9,
    "sizes": {"98304": 4321},
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


def test_equal_losses_are_called_identical_and_a_difference_is_named():
    assert outcome().identical
    assert "in all 400 steps" in outcome().verdict()
    different = outcome(differing_step=7)
    assert not different.identical
    assert different.verdict().startswith("DIFFERENT from step 7 on")


def test_the_table_has_every_figure_of_its_storage_and_the_caveat():
    disk, emulated = results.table(outcome()), results.table(outcome(emulated=True))
    for figure in results.FIGURES:
        assert (figure.title in disk) == (figure.emulated is not True), figure.key
        assert (figure.title in emulated) == (figure.emulated is not False), figure.key
    assert results.DISK_CAVEAT in disk
    assert "no <such> device" in disk
    assert "2.5 times slower than tape" in emulated
    assert results.DISK_CAVEAT not in emulated
    for value in ("97.0", "4,321", "424.8", "98.3", "12.34"):
        assert value in emulated


def test_late_replies_are_told_in_table_and_page():
    punctual, late = outcome(emulated=True), outcome(emulated=True, late=True)
    assert results.LATE in results.table(late)
    assert results.LATE in page.render(late)
    assert results.LATE not in results.table(punctual)
    assert results.LATE not in page.render(punctual)


def test_the_parts_of_the_wall_time_add_up():
    found = results.as_json(outcome())["runs"][0]
    parts = ("exposed_seconds", "compute_seconds", "skew_seconds", "communication_seconds")
    assert found["wall_seconds"] == pytest.approx(sum(found[name] for name in parts))
    assert found["training_seconds"] == pytest.approx(found["startup_seconds"] + 2 * found["wall_seconds"])
    for name in parts:
        assert found[name] == pytest.approx(np.mean([epoch[name] for epoch in found["by_epoch"]]))
    json.dumps(found)


@pytest.mark.parametrize("emulated", [False, True])
def test_every_key_of_the_result_is_documented(emulated: bool):
    text = (Path(__file__).parents[1] / "docs/metrics.md").read_text()
    section = text.split("## `forebay demo --json`")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    found = results.as_json(outcome(emulated=emulated))
    run = found["runs"][0]
    assert documented >= found.keys() | run.keys() | (run["pfs"] or {}).keys()
    assert documented >= {"spec", "time_scale", "limit_mib_s"}


class Strict(html.parser.HTMLParser):
    """Notes what a page would fetch, and tags that do not match."""

    void = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.fetched += [
            str(value) for name, value in attributes if name in {"src", "href", "srcset", "data"}
        ]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("emulated", [False, True])
def test_the_page_is_whole_and_fetches_nothing(emulated: bool):
    text = page.render(outcome(emulated=emulated))
    parser = Strict()
    parser.feed(text)
    assert parser.open == []
    assert parser.fetched == []
    for word in ("http:", "https:", "url(", "@import", "<script"):
        assert word not in text
    assert "1 &lt; 2 &amp; so on" in text
    assert "nan" not in text
    assert "identical" in text
    assert "different" in page.render(outcome(differing_step=0, emulated=emulated))
    assert ("What reached the file system" in text) == emulated
    assert ("2.5 times slower than tape" in text) == emulated
    assert ("no &lt;such&gt; device" in text) == (not emulated)
