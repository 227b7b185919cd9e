"""Whether reading keeps up with computing: reported with its numbers and advice."""

from __future__ import annotations

import random

import pytest

from forebay_lab import report
from forebay_lab.bench import table
from forebay_lab.report import data, pace
from support.bench_result import bench_result

MIB = 1 << 20


def measured(
    waited=8.0,
    reading=17.0,
    idle=0.0,
    threads=2,
    requests=4 * MIB,
    fetched=2000 * MIB,
    limit=1000.0,
    order="group",
):
    """Return a result of one row: 10 s of computing in 20 s; with the engine's readers or none."""
    row = {
        "name": f"forebay@{order}",
        "status": "ok",
        "repetitions": [
            {
                "total_seconds": 20.0,
                "locate_and_read_seconds": reading,
                "reads": fetched / requests,
                "read_bytes": fetched,
                "mmap_bytes": 0,
                "ranks": [
                    {"exposed_seconds": waited / 2, "compute_seconds": 9.5, "communication_seconds": 0.5},
                    {"exposed_seconds": waited, "compute_seconds": 9.5, "communication_seconds": 0.5},
                ],
                "readers": [{"threads": threads, "reader_idle_seconds": idle * threads * 20.0}]
                if threads is not None
                else [],
            }
        ],
    }
    return data.from_bench({"rows": [row], "compute_seconds": 0.1, "limit": {"rate_mib_s": limit}}, "test")


def pace_of(**given):
    result = measured(**given)
    return pace.of(result, result.rows[0])


def test_reading_that_hides_behind_computing_keeps_up():
    found = pace_of(waited=0.05, reading=6.0, idle=0.6)
    assert found.keeps_up
    assert found.remedy == ""
    assert found.words() == (
        "keeps up: reading takes 0.60 of the time that computing takes, and 50 ms (0.50 % of the time that computing takes) "
        "is waited for data."
    )
    assert list(pace.behind(measured(waited=0.05, reading=6.0))) == []


def test_reading_that_is_too_slow_says_by_how_much():
    words = pace_of().words()
    assert "reading takes 1.70 of the time that computing takes" in words
    assert (
        "8 s (80 % of the time that computing takes) is waited for data: 1.70 times as much per second"
        in words
    )


@pytest.mark.parametrize(
    ("given", "remedy", "words"),
    [
        ({"limit": 110.0}, "tier", "at its limit, 100 MiB/s of 110 MiB/s (91 %): a tier before it or fewer bytes"),
        # The limit comes first, whatever else holds.
        ({"limit": 110.0, "requests": 4096, "reading": 5.0}, "tier", "at its limit"),
        ({"reading": 5.0, "idle": 0.7}, "ahead", "the readers are idle 70 % of the time: more memory or buffers"),
        (
            {"requests": 64 << 10},
            "larger",
            "Requests are small, 64 KiB in the mean, 100 MiB/s of 1,000 MiB/s (10 %). Larger groups would help: 16 times",
        ),
        ({"requests": 64 << 10, "order": "shuffle"}, "larger", "The order group, or coalescing, would help"),
        (
            {"idle": 0.02},
            "readers",
            "idle 2.0 % of the time, and the storage is far from its limit, 100 MiB/s of 1,000 MiB/s (10 %): more readers "
            "would help, 4 instead of 2.",
        ),
        ({"idle": 0.5}, "ahead", "more memory or buffers"),
        ({"limit": 150.0}, "readers", "The limit allows 1.50 times as much; the rest takes a tier or fewer bytes."),
        ({"threads": 0}, "readers", "Every rank copies its samples by itself, 100 MiB/s of 1,000 MiB/s (10 %): readers"),
        ({"limit": None}, "readers", "the limit of the storage is not known"),
    ],
)  # fmt: skip
def test_the_advice_follows_from_what_was_measured(given, remedy, words):
    found = pace_of(**given)
    assert found.remedy == remedy
    assert words in found.words()


def test_unpacking_what_is_coded_counts_as_reading():
    found = measured(reading=6.0)
    found.rows[0].readers[0]["decode_seconds"] = 22.0
    pace_found = pace.of(found, found.rows[0])
    assert pace_found.reading_s == 6.0 + 22.0 / 2
    assert pace_found.remedy == "readers"


def test_a_program_without_readers_gets_its_waiting_and_no_advice():
    found = pace_of(threads=None)
    assert found.remedy == ""
    assert found.words() == (
        "waits 8 s (80 % of the time that computing takes) for data; it does not tell how it reads."
    )


def test_without_compute_there_is_nothing_to_keep_up_with():
    result = measured()
    idle = data.from_bench({**result.values, "compute_seconds": 0}, "test")
    assert pace.of(idle, idle.rows[0]) is None
    assert "without compute (--compute)" in report.render(dict(idle.values))


def test_random_measurements_are_told_without_a_contradiction():
    dice = random.Random(5)
    seen = set()
    for _ in range(3000):
        given = {
            "waited": dice.choice((0.0, 0.09, 0.2, 9.0)),
            "reading": dice.uniform(0.1, 20.0),
            "idle": dice.choice((0.0, 0.09, 0.2, 1.0)),
            "threads": dice.choice((0, 1, 8, None)),
            "requests": dice.choice((4096, MIB - 1, MIB, 8 * MIB)),
            "limit": dice.choice((None, 101.0, 130.0, 5000.0)),
        }
        found = pace_of(**given)
        words = found.words()
        seen.add(found.remedy)
        assert found.keeps_up == (given["waited"] <= 0.1)
        assert bool(found.remedy) == (not found.keeps_up and given["threads"] is not None)
        assert ("would be needed" in words) == (bool(found.remedy) and given["reading"] > 10.0)
        assert (found.remedy == "tier") == (bool(found.remedy) and given["limit"] == 101.0)
        if found.remedy == "larger":
            assert given["threads"]
            assert given["requests"] < MIB
        if found.remedy == "readers" and given["threads"]:
            assert given["idle"] < 0.1
            assert given["requests"] >= MIB
    assert seen == {"", "tier", "ahead", "larger", "readers"}


def test_the_bench_says_below_its_table_whose_reading_is_too_slow():
    result = bench_result(ranks=2, nodes=1, repetitions=1)
    result |= {"node_emulation": {"by": None}, "workload": None}
    lines = list(table.lines_below(result))
    slow = [line for line in lines if "is waited for data" in line]
    told = {line.partition(":")[0] for line in slow}
    # Both have readers, and both are made to wait 6 ms or more in each step of 21.
    assert told == {"lmm-dio-prov-coal@sequential", "forebay@group"}
    assert all("would" in line for line in slow)
    for row in result["rows"]:
        row["repetitions"][0]["ranks"] = [
            rank | {"exposed_seconds": 0.0} for rank in row["repetitions"][0]["ranks"]
        ]
    assert not [line for line in table.lines_below(result) if "is waited for data" in line]


@pytest.mark.parametrize(("steps", "cut"), [(40, True), (157, False)])
def test_a_page_says_where_epochs_were_cut(steps, cut):
    # 20,000 samples in global batches of 128.
    result = bench_result(ranks=2, nodes=1, repetitions=1) | {"steps": steps, "global_batch": 128}
    assert ("Epochs were cut (--steps): reading counts" in report.render(result)) is cut
