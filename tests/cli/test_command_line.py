"""The command line: what it prints where, its exit codes, its messages."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import support
from forebay import _renamed
from forebay.cli.commands import COMMANDS
from forebay.cli.output import bytes_text, print_table
from support import run_command as run
from support import run_command_json as run_json


def test_index_builds_the_sidecar_and_tells_what_it_took(capsys, small_lmdb):
    found = run_json(capsys, "index", small_lmdb)
    assert found["samples"] == 100
    assert found["excluded"] == {}
    # The metas come on top: on a small file they are more than what the tree leaves out.
    assert 0 < found["read_bytes"] <= found["file_bytes"] + 4096
    assert found["sidecar"].startswith(os.environ["FOREBAY_CACHE_DIR"])
    assert os.stat(found["sidecar"]).st_size == found["sidecar_bytes"]  # noqa: PTH116
    status, out, _ = run(capsys, "index", small_lmdb)
    assert status == 0
    assert out.startswith("samples           100\nexcluded records  none\nread ")


def test_index_beside_writes_next_to_the_data(capsys, tmp_path):
    path = support.write_lmdb(tmp_path / "beside.lmdb", [b"a", b"bc"])
    found = run_json(capsys, "index", path, "--sidecar-in-dataset")
    assert found["sidecar"].startswith(str(tmp_path))


def test_index_reports_records_that_are_no_samples(capsys, tmp_path):
    lmdb = pytest.importorskip("lmdb")
    path = support.write_lmdb(tmp_path / "named.lmdb", [support.datum(number) for number in range(5)])
    with lmdb.open(str(path), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"num-samples", b"5")
    found = run_json(capsys, "index", path)
    assert (found["samples"], found["excluded"]) == (5, {"num-samples": 1})


def test_inspect_tells_format_samples_and_shards(capsys, datum_lmdb):
    found = run_json(capsys, "inspect", datum_lmdb)
    assert found["format"] == "lmdb"
    assert found["samples"] == 64
    status, out, _ = run(capsys, "inspect", datum_lmdb, "--ranks", 4, "--batch-size", 8)
    assert status == 0
    lines = dict(re.findall(r"^(\S.*?)  +(.*)$", out, re.MULTILINE))
    assert lines["format"] == "lmdb, schema caffe-datum"
    assert lines["samples"] == "64"
    assert lines["field label"] == "int64, one value"
    assert lines["fingerprint"] == found["fingerprint"]
    assert "for 4 ranks with batches of 8" in " ".join(out.split())
    # A path is not broken.
    assert all(len(line) <= 80 or "/" in line for line in out.splitlines())


def test_inspect_names_classes_and_many_files_in_part(capsys, tmp_path):
    for number in range(12):
        (tmp_path / "images" / f"class{number:02}").mkdir(parents=True)
        (tmp_path / "images" / f"class{number:02}" / "a.jpg").write_bytes(b"\xff\xd8 no image")
        np.save(tmp_path / f"part-{number:02}.npy", np.zeros((3, 2)))
    _, out, _ = run(capsys, "inspect", tmp_path / "images")
    assert "12: class00, class01" in out
    assert "class11" not in out
    _, out, _ = run(capsys, "inspect", "--sample-axis", "0", *sorted(tmp_path.glob("*.npy")))
    assert "in 12 files" in out
    assert "and 4 more; --json names all" in out


def test_limit_takes_folders_of_folders(capsys, tmp_path):
    (tmp_path / "class" / "deep").mkdir(parents=True)
    (tmp_path / "class" / "deep" / "file").write_bytes(bytes(100_000))
    (tmp_path / "class" / "small").write_bytes(bytes(10))
    options = ("--kind", "mmap", "--block", "4KiB", "--seconds", "0.01")
    status, out, err = run(capsys, "limit", tmp_path, *options)
    assert status == 0, err
    assert "from the page cache" in out.splitlines()[0]


def test_columns_beyond_those_of_a_terminal_follow_below(capsys):
    header = ("row", *(f"column {number}" for number in range(12)))
    rows = [("a-long-name", *range(12)), ("b", *range(100, 112))]
    print_table(header, rows, 40)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    blocks = "\n".join(lines).split("\n\n")
    assert all(
        [line.split()[0] for line in block.splitlines()] == ["row", "a-long-name", "b"] for block in blocks
    )
    assert [cell for block in blocks for cell in block.splitlines()[2].split()[1:]] == [
        str(n) for n in range(100, 112)
    ]


def test_verify_reads_every_sample(capsys, small_lmdb):
    found = run_json(capsys, "verify", small_lmdb)
    assert (found["samples"], found["bad_samples"], found["bad"]) == (100, 0, [])
    status, out, _ = run(capsys, "verify", small_lmdb)
    assert (status, out) == (0, "samples  100\nbad      0\n")


def test_verify_lists_bad_samples_and_fails(capsys, tmp_path):
    values = [support.datum(number) for number in range(1000)]
    values[613] = values[613][:50]
    path = support.write_lmdb(tmp_path / "bad.lmdb", values)
    status, out, err = run(capsys, "verify", path, "--schema", "caffe-datum", "--json")
    found = json.loads(out)
    assert status == 1
    assert [one["sample"] for one in found["bad"]] == [613]
    assert "1 of 1000 samples are bad" in err
    status, out, _ = run(capsys, "verify", path, "--schema", "caffe-datum")
    assert status == 1
    assert "sample 613: " in out


def test_limit_prints_a_rate_for_each_kind_and_block_size(capsys, small_lmdb):
    found = run_json(capsys, "limit", small_lmdb, "--seconds", "0.02", "--block", "4KiB", "--block", "16KiB")
    kinds = [(figure["kind"], figure["block_bytes"]) for figure in found["figures"]]
    assert kinds == [
        (kind, block) for block in (4096, 16384) for kind in ("sequential", "random", "direct", "mmap")
    ]
    status, out, _ = run(
        capsys, "limit", small_lmdb, "--seconds", "0.02", "--kind", "random", "--block", "8KiB"
    )
    assert status == 0
    _, head, row = out.splitlines()
    assert head.split() == ["MiB/s", "random"]
    assert row.startswith("8 KiB")


@pytest.mark.parametrize("command", ["index", "inspect", "verify", "limit"])
def test_a_missing_file_is_an_error_without_a_traceback(capsys, command):
    status, out, err = run(capsys, command, "/nowhere/gone.lmdb")
    assert (status, out) == (1, "")
    assert err.startswith("forebay: ")
    assert "/nowhere/gone.lmdb" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["index"],
        ["index", "x", "--wrong"],
        ["limit", "x", "--kind", "sideways"],
        ["limit", "x", "--block", "two"],
        ["verify", "x", "--threads", "0"],
        ["index", "x", "--schema", "jpeg"],
        ["demo", "--ranks", "0"],
        ["inspect", "x", "--batch-size", "99999999999999999999"],
        ["limit", "x", "--seconds", "nan"],
        ["bench", "x", "--timeout", "nan"],
        ["bench", "x", "--seed", "99999999999999999999"],
        ["bench", "x", "--targets", "3"],
        ["bench", "x", "--time-scale", "3"],
        ["bench", "x", "--pfs", "nfs", "--time-scale", "-1"],
        ["bench", "x", "--ranks-per-node", "1,1", "--ranks", "3"],
        ["bench", "x", "--ranks-per-node", "0,1"],
        ["bench", "x", "--baseline", "gone.py"],
    ],
)
def test_wrong_use_ends_with_2_and_says_what_is_right(capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err


def test_help_names_every_command(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for name in COMMANDS:
        assert name in out
        status, page, _ = run(capsys, name, "--help")
        assert status == 0
        assert "--json" in page


def test_version_is_that_of_the_core(capsys):
    import forebay

    assert run(capsys, "--version")[:2] == (0, f"forebay {forebay.__version__}\n")


def test_the_command_starts_without_numpy():
    code = """
import sys, forebay.cli
forebay.cli.main(['--help'])
print('numpy' in sys.modules, 'rich' in sys.modules, file=sys.stderr)
"""
    done = support.run_python(code)
    assert done.stderr == "False False\n"


def test_a_reader_that_leaves_is_no_traceback(small_lmdb):
    command = f"{sys.executable} -m forebay inspect {small_lmdb} | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=support.DEADLINE_S, check=False
    )
    assert "Traceback" not in done.stderr


def test_progress_shows_after_two_seconds_on_a_terminal_only():
    code = """
import sys, time
from forebay.cli import output
output.PATIENCE_S = float(sys.argv[1])
with output.progress() as report:
    for done in range(5):
        report("reading", done, 5)
        report("finding", 1000 + done, 0)
        time.sleep(0.02)
print("data")
"""

    def on_terminal(patience):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-c", code, str(patience)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            timeout=support.DEADLINE_S,
            check=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:
            pass
        os.close(ours)
        assert done.stdout == "data\n"
        return shown

    shown = on_terminal(0)
    assert b"reading" in shown
    assert b"finding: 1,004" in shown
    assert on_terminal(60) == b""
    assert support.run_python(code, 0).stderr == ""


def test_sizes_and_tables_are_written_for_people(capsys):
    assert [bytes_text(size) for size in (0, 1023, 1024, 1536, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "5 GiB",
    ]
    print_table(("a", "bb"), [("x", 100), ("yy", 2)])
    assert capsys.readouterr().out == "a    bb\nx   100\nyy    2\n"


def test_the_demo_passes_its_options_on(monkeypatch):
    import forebay_lab.demo

    seen = {}
    monkeypatch.setattr(forebay_lab.demo, "main", lambda **options: seen.update(options) or 0)
    from forebay.cli.commands import cli as group

    outcome = CliRunner().invoke(
        group,
        [
            "demo",
            "--ranks",
            "2",
            "--samples",
            "900",
            "--output",
            "o.html",
            "--keep",
            "--pfs",
            "gpfs",
            "--json",
        ],
    )
    assert outcome.exit_code == 0
    assert {**seen, "output": str(seen["output"])} == {
        "json": True,
        "keep": True,
        "ranks": 2,
        "samples": 900,
        "output": "o.html",
        "preset": "gpfs",
        "emulate": True,
    }


@pytest.mark.parametrize("command", ["bench", "report", "demo"])
def test_a_page_takes_the_place_of_nothing_but_a_page(capsys, tmp_path, small_lmdb, command):
    precious = tmp_path / "data.mdb"
    precious.write_bytes(b"precious")
    source = tmp_path / "bench.json"
    source.write_text("{}")
    arguments = {
        "bench": [str(small_lmdb), "--report", str(precious)],
        "report": [str(source), "--output", str(precious)],
        "demo": ["--output", str(precious)],
    }
    status, out, err = run(capsys, command, *arguments[command])
    assert (status, out) == (2, "")
    assert "data.mdb: is there already, and no HTML page; it would be overwritten" in err
    assert precious.read_bytes() == b"precious"


def test_a_baseline_that_cannot_be_imported_is_an_error_without_a_traceback(capsys, tmp_path, small_lmdb):
    (tmp_path / "mine.py").write_text("def broken(:\n")
    status, _, err = run(capsys, "bench", small_lmdb, "--baseline", str(tmp_path / "mine.py"))
    assert status == 2
    assert "mine.py: cannot be imported: SyntaxError: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize("closing", [">&-", "<&- >&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("path", "status"), [("data", 0), ("missing", 1)])
def test_streams_that_the_caller_closed_are_no_trouble(tmp_path, closing, path, status):
    support.write_lmdb(tmp_path / "data", [b"a", b"bc"])
    command = [sys.executable, "-m", "forebay", "verify", tmp_path / path]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closing}', "bash", *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=support.DEADLINE_S,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (status, False)
    assert ("does not exist" in done.stderr) == (status == 1 and "2>&-" not in closing)


@pytest.mark.parametrize(
    ("typed", "meant"), [(["inspekt"], "inspect"), (["cache", "lst"], "ls"), (["pfs", "umount"], "unmount")]
)
def test_a_mistyped_command_gets_a_suggestion(capsys, typed, meant):
    status, _, err = run(capsys, *typed)
    assert (status, f"Did you mean {meant!r}?" in err) == (2, True)


def test_a_command_that_is_like_no_other_gets_none(capsys):
    assert "Did you mean" not in run(capsys, "zzzzzz")[2]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--threads", "0", "an integer of at least 1, found 0"),
        ("--threads", "65", "an integer of at most 64, found 65"),
        ("--threads", "many", "an integer, found 'many'"),
        ("--seconds", "0.001", "a number of at least 0.01, found 0.001"),
        ("--seconds", "nan", "a number, found 'nan'"),
    ],
)
def test_a_wrong_number_is_told_with_what_was_expected(capsys, small_lmdb, option, value, expected):
    status, _, err = run(capsys, "limit", small_lmdb, option, value)
    assert (status, f"expected {expected}" in err) == (2, True)
    assert "x<=" not in run(capsys, "limit", "--help")[1]


@pytest.mark.parametrize(
    ("command", "old"),
    [
        (["index", "x"], "--beside"),
        (["bench", "x"], "--case"),
        (["bench", "x"], "--job-ranks"),
        (["bench", "x"], "--no-verify"),
        (["bench", "x"], "--per-node"),
        (["bench", "x"], "--slow-down"),
        (["pfs"], "cold"),
    ],
)
def test_an_old_word_is_refused_with_that_of_today(capsys, command, old):
    status, _, err = run(capsys, *command, old)
    assert (status, f"hint: it is called {_renamed.COMMANDS[old]}\n" in err) == (2, True), err


def test_every_old_word_is_tried():
    (mark,) = test_an_old_word_is_refused_with_that_of_today.pytestmark
    assert {old for _, old in mark.args[1]} == _renamed.COMMANDS.keys()


def test_limit_says_whether_the_page_cache_is_measured(capsys, small_lmdb):
    arguments = ("limit", str(small_lmdb), "--kind", "sequential", "--block", "64KiB", "--seconds", "0.01")
    assert "from the page cache" in run(capsys, *arguments)[1].splitlines()[0]
    assert "dropped from the page cache" in run(capsys, *arguments, "--cold")[1].splitlines()[0]
