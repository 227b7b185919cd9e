"""Reports: the page says what the result says, to everybody, without a network."""

from __future__ import annotations

import errno
import itertools
import json
import math
import re
from pathlib import Path

import pytest

from forebay import FormatError, StorageError, cli
from forebay_lab import report
from forebay_lab.report import columns, data, numbers, page
from forebay_lab.report.figures import FIGURES, Missing, levels, model, phases, sizes
from support import ROOT
from support.bench_result import HOSTILE, PHASES, STRATEGIES, bench_result, event_log, failed_row, hostile
from support.report_page import Page

FIGURE_IDS = [figure.id for figure in FIGURES if "bench" in figure.kinds]


@pytest.fixture(scope="module")
def result():
    return bench_result()


@pytest.fixture(scope="module")
def rendered(result):
    return report.render(result)


def test_every_figure_is_there_and_every_row_in_each(result, rendered):
    found = Page(rendered)
    assert [key for key in found.sections if key in FIGURE_IDS] == FIGURE_IDS
    assert {found.sections[key][0] for key in FIGURE_IDS} == {"figure"}
    for key in FIGURE_IDS:
        # A long name is shortened in a picture and whole in its tooltip.
        for row in result["rows"]:
            assert row["name"] in found.text(key), (key, row["name"])
    for row in result["rows"]:
        assert row["name"] in found.text("rows")


def test_figures_are_listed_once_and_each_says_what_it_shows(rendered):
    assert len(set(FIGURE_IDS)) == len(FIGURE_IDS)
    for figure in FIGURES:
        assert (figure.title in rendered) == ("bench" in figure.kinds)
        assert figure.kinds


def test_the_numbers_of_the_table_are_those_of_the_result(result, rendered):
    cells = Page(rendered).cells
    for row in result["rows"]:
        for key, value in row["median"].items():
            assert cells[row["name"], key] == value, (row["name"], key)
    shown = {key for _, key in cells}
    assert {column.key for column in columns.COLUMNS} == shown


def test_what_the_median_lacks_is_made_from_the_ranks():
    result = bench_result(ranks=2, nodes=1, repetitions=3)
    row = result["rows"][0]
    for key in ("reads", "exposed_seconds", "cpu_seconds"):
        for values in (row["median"], *row["repetitions"]):
            del values[key]
    for at, one in enumerate(row["repetitions"]):
        for rank in one["ranks"]:
            rank |= {"exposed_seconds": 1.0 + at, "cpu_seconds": 2.0, "reads": 10 + at}
    cells = Page(report.render(result)).cells
    name = row["name"]
    # Seconds are means, counts are sums; then the median of three repetitions.
    assert cells[name, "exposed_seconds"] == 2.0
    assert cells[name, "cpu_seconds"] == 4.0
    assert cells[name, "reads"] == 22
    asked = sum(rank["requested_bytes"] for rank in row["repetitions"][0]["ranks"])
    fetched = sorted(sum(node["read_bytes"] for node in one["pfs"]["nodes"]) for one in row["repetitions"])[1]
    assert cells[name, "server_bytes"] == fetched
    assert cells[name, "fetched_requested_ratio"] == pytest.approx(fetched / asked)


def test_a_number_that_the_report_does_not_know_is_shown_all_the_same(result):
    strange = json.loads(json.dumps(result))
    strange["rows"][0]["median"] |= {"new_thing_seconds": 1.25, "widgets": 7, "text": "no number"}
    found = Page(report.render(strange))
    name = strange["rows"][0]["name"]
    assert (found.cells[name, "new_thing_seconds"], found.cells[name, "widgets"]) == (1.25, 7)
    assert "new thing seconds [s]" in found.text("rows")


def test_the_phases_of_a_picture_add_up_to_the_wall(result):
    for row in data.from_bench(result, "test").rows:
        values = phases.mean_phases(row)
        assert math.isclose(sum(values[key] for key in PHASES), row.shown["wall_seconds"])
    assert {key for key, _, _ in phases.PHASES} == set(PHASES)


def test_pictures_show_the_repetition_with_the_median_time(result):
    for row, given in zip(data.from_bench(result, "test").rows, result["rows"], strict=True):
        totals = sorted(one["total_seconds"] for one in given["repetitions"])
        assert row.shown["total_seconds"] == totals[2] == given["median"]["total_seconds"]


def test_bytes_by_level_are_those_of_the_result_with_tiers_between_source_and_page_cache(result):
    rows = data.from_bench(result, "test").rows
    for row, given in zip(rows, result["rows"], strict=True):
        (shown,) = (one for one in given["repetitions"] if one["total_seconds"] == row.shown["total_seconds"])
        expected = [(one["epoch"], one["levels"]) for one in shown["by_epoch"]]
        assert levels.epochs(row) == expected
        assert all(list(of) == ["source", "/scratch/me", "page_cache"] for _, of in levels.epochs(row))


@pytest.mark.parametrize("given", [None, [], {"source": "many"}, {"source": None, "/a": 2}])
def test_levels_that_a_result_lacks_are_left_out(given):
    result = bench_result(ranks=2, nodes=1, repetitions=1, events=10)
    for row in result["rows"]:
        row["repetitions"][0]["by_epoch"] = [{"levels": given}]
    drawn = levels.draw(data.from_bench(result, "test"))
    is_known = isinstance(given, dict) and "/a" in given
    assert isinstance(drawn, Missing) != is_known
    if is_known:
        assert "/a" in drawn.html


def test_shares_of_sizes_are_those_of_the_counters():
    found = sizes.shares({4096: 30, 5000: 10, 8192: 10, 1 << 20: 50})
    assert {power: share for power, (share, _) in found.items()} == {12: 0.4, 13: 0.1, 20: 0.5}
    whole = 30 * 4096 + 10 * 5000 + 10 * 8192 + 50 * (1 << 20)
    assert found[12][1] == (30 * 4096 + 10 * 5000) / whole
    assert sum(share for _, share in found.values()) == pytest.approx(1)


def test_events_are_strokes_from_first_to_last_byte(result, rendered):
    section = rendered.split('<section id="offsets"')[1].split("</section>")[0]
    shown = sum(len(one["repetitions"][0]["events"]) for one in result["rows"])
    assert section.count("M") - section.count("Mi") >= shown
    strokes = re.findall(r"M(-?[\d.]+) (-?[\d.]+)v(-?[\d.]+)", section)
    assert len(strokes) == shown
    # Inside the picture, all of them.
    assert all(
        0 <= float(x) <= 940 and 0 <= float(y) <= 400 and float(length) <= 0 for x, y, length in strokes
    )


def test_without_an_emulator_three_figures_say_why_they_are_left_out():
    found = Page(report.render(bench_result(pfs=False)))
    for key in ("offsets", "sizes", "servers"):
        style, texts = found.sections[key]
        assert style == "missing"
        assert "forebay pfs" in "".join(texts)
    assert found.sections["phases"][0] == "figure"


def test_every_figure_survives_a_result_with_next_to_nothing():
    bare = {"rows": [{"name": "a@b", "status": "ok", "repetitions": [{"wall_seconds": 1.0}]}]}
    result = data.from_bench(bare, "test")
    for figure in FIGURES:
        drawn = figure.draw(result)
        assert isinstance(drawn, Missing)
        assert drawn.why.endswith(".")
    for values in (
        bare,
        {"rows": []},
        {"rows": [failed_row()]},
        {"rows": [failed_row() | {"median": None, "spread": None}]},
    ):
        Page(report.render(values))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "text", [], True])
def test_a_value_that_is_no_number_is_shown_as_unknown(result, value):
    odd = json.loads(json.dumps(result))
    for row in odd["rows"]:
        row["median"]["rate_mib_s"] = value
        for one in row["repetitions"]:
            one["rate_mib_s"] = value
            for rank in one["ranks"]:
                rank["skew_seconds"] = value
    found = Page(report.render(odd))
    assert not any(key == "rate_mib_s" for _, key in found.cells)
    assert "nan" not in found.text("phases").lower()


def test_failed_rows_stand_with_their_message_and_do_not_stop_the_others(result):
    broken = json.loads(json.dumps(result))
    broken["rows"].insert(0, failed_row(error="Traceback: <b>died</b>"))
    found = Page(report.render(broken))
    assert "h5py@sequential: failed" in found.text("failed")
    assert "Traceback: <b>died</b>" in found.text("failed")
    assert "forebay@group" in found.text("rows")
    assert "h5py" not in found.text("rows")


def test_warnings_late_replies_command_and_verification_are_told(result):
    told = json.loads(json.dumps(result))
    told["rows"][2]["repetitions"][0]["missed_deadlines"] = True
    told["verified"][1]["equal"] = False
    found = Page(report.render(told))
    assert "the machine has fewer cores than there are ranks: 16 for 20" in found.text("warnings")
    assert "pylmdb-contiguous@contiguous: in 1 of 5 repetitions the emulator replied later" in found.text(
        "warnings"
    )
    assert "replies late" in found.text("rows")
    assert "forebay bench '/mnt/node 0/imagenet.lmdb' --ranks 16 --nodes 4" in found.text("run")
    assert "Not verified" in found.text("run")
    assert "different" in found.text()
    assert "the machine took 18 times as long" in found.text()


def test_hostile_texts_are_escaped_everywhere():
    result = bench_result(ranks=4, nodes=2, events=50)
    result["rows"].append(failed_row())
    plain, found = Page(report.render(result)), Page(report.render(hostile(result)))
    assert [tag for tag, _ in found.tags if tag in ("script", "img")] == []
    assert all(not name.startswith("on") for _, given in found.tags for name in given)
    # The very same tags: no text became one.
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert HOSTILE in found.text("failed")
    assert HOSTILE in found.text("rows").replace("\xa0", "")
    assert HOSTILE in found.text("offsets")


def test_the_page_refers_to_nothing_outside(rendered):
    assert not re.search(r"(?:src|href|url|@import)\s*[=(]", rendered)
    assert "<script" not in rendered
    assert "default-src 'none'" in rendered
    assert "://" not in rendered


def test_many_ranks_rows_and_nodes_stay_within_a_page():
    # 512 ranks are thinned to what can be told apart; both ends stay.
    found = report.render(
        bench_result(ranks=512, nodes=64, strategies=STRATEGIES[:2], repetitions=1, steps=4, events=200)
    )
    assert "64 of 512 ranks" in found
    assert "rank 0 on node 0" in found
    assert "rank 511 on node 63" in found
    assert "64 nodes share 16 colours" in found
    assert len(found) < 2_000_000


def test_several_files_stand_one_above_the_other():
    result = bench_result(ranks=2, nodes=1, strategies=STRATEGIES[:1], repetitions=1, events=20)
    for at, event in enumerate(result["rows"][0]["repetitions"][0]["events"]):
        event[2] = f"part-{at % 5}"
    assert "5 files stand one above the other" in Page(report.render(result)).text("offsets")


def test_files_that_are_tiny_beside_the_data_are_named_and_not_drawn():
    result = bench_result(ranks=2, nodes=1, strategies=STRATEGIES[:1], repetitions=1, events=20)
    events = result["rows"][0]["repetitions"][0]["events"]
    events[0][2:5] = ["imagenet.lmdb/lock.mdb", 0, 8192]
    section = report.render(result).split('<section id="offsets"')[1].split("</section>")[0]
    assert "Too small to be seen: imagenet.lmdb/lock.mdb." in section
    assert len(re.findall(r"M[\d.]+ [\d.]+v", section)) == len(events) - 1
    assert "20 of 800 requests" in section


# Numbers.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1, "1"), (12345, "12,345"), (1.5, "1.50"), (0.1234, "0.123"), (99.96, "100.0"), (123.4, "123"),
        (12345.6, "12,346"), (0.000123456, "0.000123"), (-2.5, "-2.50"), (math.nan, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value, text):
    assert numbers.digits(value) == text


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("seconds", 0.0000005, "0.500 µs"), ("seconds", 0.0021, "2.10 ms"), ("seconds", 75.25, "75.2 s"), ("seconds", 0, "0 s"),
        ("bytes", 1023, "1,023 B"), ("bytes", 1536, "1.50 KiB"), ("bytes", 3 << 40, "3 TiB"), ("bytes", 0, "0 B"),
        ("share", 0.987, "98.7 %"), ("rate", 1350.0, "1,350 MiB/s"), ("count", 7, "7"), ("ratio", 3.6, "3.60 ×"),
    ],
)  # fmt: skip
def test_numbers_get_the_unit_that_fits(kind, value, text):
    assert numbers.text(kind, value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.123, "12 %"), (0.0123, "1.2 %"), (0.00123, "0.12 %"), (0, "0 %"), (1, "100 %"), (math.nan, "–")],
)
def test_shares_are_percent_with_two_digits_where_they_are_small(share, text):
    assert numbers.percent(share) == text


@pytest.mark.parametrize("largest", [1e-9, 0.013, 0.7, 1, 4.9, 17, 100, 999, 123_456, 1e12])
def test_ticks_are_few_round_and_within_the_axis(largest):
    ticks = numbers.ticks(largest)
    assert 2 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert largest / 3 < ticks[-1] <= largest * 1.001
    steps = {round((after - before) / ticks[1], 6) for before, after in itertools.pairwise(ticks)}
    assert steps == {1.0}
    assert numbers.ticks(0) == [0.0]


# Event logs.


def test_an_event_log_becomes_offsets_sizes_and_nodes(tmp_path):
    events = [[at * 0.01, at % 2, "data.mdb", at // 2 * 4096, 4096, 0.0005] for at in range(200)]
    events.append([2.5, 1, "other.mdb", 0, 1 << 20, 0.004])
    result = data.read(event_log(tmp_path / "events.jsonl", events))
    found = Page(page.render(result))
    assert list(found.sections) == ["offsets", "sizes", "nodes", "files", "run"]
    assert {found.sections[key][0] for key in ("offsets", "sizes")} == {"figure"}
    assert "Requests to lustre-hdd" in found.text()
    assert "201 requests of 2 nodes for 2 files" in found.text()
    values = [float(given["data-value"]) for _, given in found.tags if "data-value" in given]
    # Node 0: each read follows the one before it, and the first begins at 0, as `forebay pfs stats`
    # counts; half and 99 % of them took the modelled latency.
    assert values[:6] == [100, 100 * 4096, 4096, 1, 0.0005, 0.0005]
    assert values[6:8] == [101, 100 * 4096 + (1 << 20)]


def test_a_long_event_log_is_thinned_evenly_and_counted_wholly(tmp_path):
    count = 5 * data.EVENTS_SHOWN
    result = data.read(
        event_log(tmp_path / "e.jsonl", ([at * 1e-3, 0, "f", at * 512, 512, 1e-4] for at in range(count)))
    )
    row = result.rows[0]
    assert row.event_count == count == row.sizes[512]
    assert data.EVENTS_SHOWN / 2 <= len(row.events) <= 2 * data.EVENTS_SHOWN
    gaps = {after.offset - before.offset for before, after in itertools.pairwise(row.events)}
    assert len(gaps) == 1


def test_a_last_line_that_breaks_off_is_left_out_with_a_warning(tmp_path):
    path = event_log(tmp_path / "events.jsonl", [[0.0, 0, "f", 0, 10, 0.1], [0.1, 0, "f", 10, 10, 0.1]])
    path.write_text(path.read_text()[:-7])
    result = data.read(path)
    assert result.rows[0].event_count == 1
    assert "breaks off" in Page(page.render(result)).text("warnings")


def test_an_event_log_without_events_says_so(tmp_path):
    found = Page(page.render(data.read(event_log(tmp_path / "events.jsonl", []))))
    assert "There are no events" in found.text("offsets")


@pytest.mark.parametrize(
    "event",
    [
        "{}",
        "[1]",
        '[0, -1, "f", 0, 1, 0]',
        '[0, 0, "f", 0.5, 1, 0]',
        '[NaN, 0, "f", 0, 1, 0]',
        "[0, 0, null, 0, 1, 0]",
        "nothing",
    ],
)
def test_a_malformed_event_is_an_error_that_names_file_and_line(tmp_path, event, says):
    path = event_log(tmp_path / "events.jsonl", [[0.0, 0, "f", 0, 10, 0.1]])
    path.write_text(path.read_text() + event + "\n" + '[0, 0, "f", 0, 1, 0]\n')
    with says(FormatError, 3, str(path)):
        data.read(path)


def test_an_event_log_of_another_version_is_refused(tmp_path, says):
    log = event_log(tmp_path / "events.jsonl", [], header={"forebay_events": 1, "spec": {}, "slow_down": 4.0})
    with says(FormatError, "forebay_events", 2, 1):
        data.read(log)


# Files and the command.


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[]", ("--json",)),
        ("{}", ()),
        ('{"rows": [1]}', (0, 1)),
        ('{"rows": [{}]}', (0,)),
        (
            '{"rows": [{"name": "a", "repetitions": 3}]}',
            (0, 3),
        ),
        ('{"rows": [{"name": "a", "median": [1]}]}', (0,)),
        (
            '{"rows": [{"name": "a", "repetitions": [{"events": [[1]]}]}]}',
            (0, "time_s"),
        ),
        ('{"rows": [], "warnings": 1}', (1,)),
        # A result of the first version, whose keys had other names, had none.
        ('{"rows": []}', (2, 3)),
        ('{"version": 4, "rows": []}', (2, 3, 4)),
        ("{\n  nonsense", (2, "JSON", "--json")),
        ("", (1, "JSON")),
    ],
)
def test_what_is_no_bench_result_is_an_error_that_names_file_and_key(tmp_path, text, values, says):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with says(FormatError, *values) as caught:
        data.read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_an_error_that_names_it(tmp_path, says):
    with says(StorageError):
        data.read(tmp_path / "absent.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with says(FormatError):
        data.read(tmp_path / "binary")


def test_a_result_of_version_2_is_drawn_without_what_was_simulated(tmp_path, result):
    old = json.loads(json.dumps(result)) | {"version": 2}
    for row in old["rows"]:
        del row["simulated"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    found = Page(report.render(data.read(path).values))
    assert found.sections["model"][0] == "missing"
    assert "--simulated" in found.text("model")
    assert found.sections["phases"][0] == "figure"


def test_the_model_is_drawn_over_what_was_measured(result):
    pairs = model.pairs(data.from_bench(result, "the result"))
    assert [pair.name for pair in pairs] == [row["name"] for row in result["rows"]]
    for pair, row in zip(pairs, result["rows"], strict=True):
        times = [one["wall_seconds"] for one in row["repetitions"]]
        assert pair.measured == (row["median"]["wall_seconds"], min(times), max(times))
        assert pair.simulated[1:] == tuple(row["simulated"]["range"]["wall_seconds"])
    # The diagonal goes from corner to corner.
    plot = Page(report.render(result)).text("model")
    assert "measured" in plot
    assert "simulated" in plot


@pytest.mark.parametrize(
    "simulated", [None, [], {"median": 3}, {"median": {"wall_seconds": -1.0}, "range": None}]
)
def test_a_row_that_was_not_simulated_is_left_out_of_the_model(result, simulated):
    odd = json.loads(json.dumps(result))
    odd["rows"][0]["simulated"] = simulated
    assert len(model.pairs(data.from_bench(odd, "the result"))) == len(odd["rows"]) - 1


def test_the_command_writes_the_page_beside_the_source_or_where_told(tmp_path, capsys, result):
    source = tmp_path / "bench.json"
    source.write_text(json.dumps(result))
    assert cli.main(["report", str(source)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'bench.html'}\n"
    target = tmp_path / "other.html"
    assert cli.main(["report", str(source), "-o", str(target), "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out) == {
        "source": str(source), "output": str(target), "kind": "bench", "rows": 8, "warnings": result["warnings"],
    }  # fmt: skip
    assert result["warnings"][0] in found.err
    assert target.read_text() == (tmp_path / "bench.html").read_text() == report.render(result)
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_the_command_fails_with_a_message_where_it_cannot(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "absent.json")]) == 1
    assert "absent.json: No such file" in capsys.readouterr().err
    source = tmp_path / "bench.json"
    empty = {"version": data.RESULT_VERSION, "rows": []}
    source.write_text(json.dumps(empty))
    assert cli.main(["report", str(source), "-o", str(tmp_path / "nowhere" / "page.html")]) == 1
    assert "report: writing" in capsys.readouterr().err
    assert cli.main(["report", str(source), "-o", str(source)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert json.loads(source.read_text()) == empty
    assert cli.main(["report"]) == 2


def test_writing_replaces_the_whole_page_or_nothing(tmp_path, result, monkeypatch):
    target = tmp_path / "page.html"
    report.write(result, target)
    before = target.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError) as failed:  # noqa: PT011 - its number says which
        report.write(bench_result(ranks=2, nodes=1), target)
    assert failed.value.errno == errno.ENOSPC
    assert target.read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_every_column_is_described_in_the_docs():
    text = (ROOT / "docs/report.md").read_text()
    described = set(re.findall(r"`([a-z_]+)`", text))
    for column in columns.COLUMNS:
        assert column.key in described, column.key
    for figure in FIGURES:
        assert f"| {figure.title} |" in text


# How well orders shuffle.


def test_each_row_tells_its_shuffle_quality_with_the_numbers_of_the_condition(result, rendered):
    text = Page(rendered).text("shuffle")
    assert "20,000 / 625 = 32.0" in text
    assert "1: holds" in text
    assert "Not known of other programs: pylmdb-skipping@sequential" in text
    assert "no bound" in text
    assert "Too many epochs" not in text


@pytest.mark.parametrize(
    ("better", "text"),
    [
        ({"samples": 91, "window": 4}, "forebay@group, where groups of 91 samples in windows of 4 would do"),
        (
            None,
            "forebay@group, whose dataset is too small for groups that would do; the order shuffle would",
        ),
    ],
)
def test_a_row_whose_groups_are_too_small_says_which_would_do(result, better, text):
    failing = json.loads(json.dumps(result))
    failing["rows"][-1]["shuffle_quality"] |= {
        "epochs": 90,
        "within_bound": False,
        "suggested_group": better,
    }
    found = Page(report.render(failing)).text("shuffle")
    assert "90: fails" in found
    assert f"Too many epochs for their groups: {text}." in found
