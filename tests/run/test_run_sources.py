"""`forebay run`: which files of a source are served, and what is said of the others."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

import support
from support.preload import run
from support.run_session import run_with_tier
from support.tiering import settle

SIZE = 5000


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Directories with files that are old enough to be copied; each test has its own."""
    base = tmp_path_factory.mktemp("sources")

    def write(path, size=SIZE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))

    for name in ("plain", "logs", "hub/blobs", "replaced"):
        for file in "abc":
            write(base / name / file)
    for file in "ab":
        write(base / "gone" / file, 600_000)
    for ending in ("-wal", "-shm", "-journal"):
        (base / "logs" / f"a{ending}").write_bytes(b"x")
    write(base / "outside")
    snapshot = base / "hub" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "a").symlink_to("../../blobs/a")
    (snapshot / "outside").symlink_to(base / "outside")
    with closing(sqlite3.connect(base / "database")) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table t(x)")
        database.commit()
    (base / "sqlite").mkdir()
    (base / "database").rename(base / "sqlite" / "database")
    settle([base])
    return base


@pytest.fixture
def job(daemon, base, tmp_path, monkeypatch):
    """Run a program under `forebay run`; return its output and the JSON of the run."""
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    tier = tmp_path / "tier"
    tier.mkdir()
    return lambda source, *command, **more: run_with_tier(tier, base / source, *command, **more)


def python(program):
    return [sys.executable, "-c", program]


# Opens a path until it was served.
UNTIL_SERVED = """
import sys, time
from forebay import _native
def served():
    return sum(run["opens_served"] for run in _native.run_usage())
while not served():
    for path in sys.argv[1:]:
        open(path, "rb").read()
    time.sleep(0.05)
"""


def test_files_with_the_log_of_a_database_beside_them_are_not_served(job):
    _, found = job("logs", "cat", "a", "b", options=["--stage"])
    assert found["not_copied"] == {"a_database": 1}
    assert (found["opens"], found["opens_served"], found["counters"]["refused"]) == (2, 1, 1)


def test_a_file_that_a_process_has_open_for_writing_is_not_served_until_it_is_closed(job, base):
    with (base / "plain" / "a").open("ab"):
        _, found = job("plain", "cat", "a", "b", options=["--stage"])
        assert found["not_copied"] == {"open_for_writing": 1}
        assert (found["opens"], found["opens_served"]) == (2, 1)
    _, found = job("plain", "cat", "a", "b", options=["--stage"])
    assert (found["not_copied"], found["opens_served"]) == ({}, 2)


DATABASE = """
import sqlite3, sys
with_rows = sqlite3.connect("file:database?mode=ro", uri=True)
for line in sys.stdin:
    print(with_rows.execute("select count(*), sum(x) from t").fetchone(), flush=True)
"""


def test_a_reader_of_sqlite_sees_what_others_write(daemon, base, tmp_path):
    where = ["--tier", f"{tmp_path}:64MiB", "--source", base / "sqlite", "--stage"]
    words = [sys.executable, "-m", "forebay", "run", *where, "--", *python(DATABASE)]
    with (
        subprocess.Popen(
            words,
            cwd=base / "sqlite",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as reader,
        closing(sqlite3.connect(base / "sqlite" / "database")) as writer,
    ):
        for rows in range(1, 4):
            writer.executemany("insert into t values (?)", [(1,)] * 2000)
            writer.commit()
            writer.execute("pragma wal_checkpoint(passive)")
            print(file=reader.stdin, flush=True)
            assert reader.stdout.readline() == f"({rows * 2000}, {rows * 2000})\n"
        reader.stdin.close()
        assert reader.wait(support.DEADLINE_S) == 0


def test_a_link_within_the_source_is_served_and_one_that_leads_out_is_named(job):
    a, outside = "snapshots/1/a", "snapshots/1/outside"
    job("hub", *python(UNTIL_SERVED), a, options=["--fetch", "whole"])
    _, found = job("hub", "cat", a, outside, "blobs/a")
    assert (found["opens"], found["opens_served"]) == (2, 2)
    _, found = job("hub", "true", options=["--stage"])
    assert found["not_copied"] == {"outside_of_the_sources": 1}


def test_a_path_that_leads_out_of_the_source_is_no_source(job, base):
    program = f"for _ in range(3): open('{base}/plain/../outside', 'rb').read()"
    _, found = job("plain", *python(program), options=["--fetch", "whole"])
    assert (found["opens"], found["copied_files"], found["counters"]["wishes"]) == (0, 0, 0)


def test_what_is_mounted_below_the_source_is_served_and_copied_once(base, tmp_path, monkeypatch, daemon):
    """Also by relative paths, and from the first open of a later job on."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no own mounts here")
    source = tmp_path / "source"
    (source / "mounted").mkdir(parents=True)
    (tmp_path / "tier").mkdir()
    script = tmp_path / "script"
    options = f"--tier {tmp_path}/tier:64MiB --source {source}"
    script.write_text(
        f"""set -e
        mount -t tmpfs none {source}/mounted
        cp {base}/plain/* {source}/mounted
        cd {source}
        export FOREBAY_TIERS_IDLE=60
        for options in '--stage' '--stage' ''; do
            {sys.executable} -m forebay run {options} --json {tmp_path}/$((n += 1)).json $options -- \\
                cat mounted/a {source}/mounted/b > /dev/null
        done
        """
    )
    done = subprocess.run(["unshare", "-m", "bash", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{number}.json").read_text())["run"] for number in (1, 2, 3)]
    assert [(one["copied_files"], one["opens"], one["opens_served"]) for one in found] == [
        (3, 2, 2),
        (0, 2, 2),
        (0, 2, 2),
    ]


REPLACE = """
import os, sys, time
from forebay import _native
data = open("a", "rb").read()
for number in range(2):
    with open("new", "wb") as file:
        file.write(data)
    old = time.time_ns() - 10**10
    os.utime("new", ns=(old, old))
    os.replace("new", "a")
    while open("a", "rb").read() and not _native.run_usage()[0]["copied_files"] > number:
        time.sleep(0.05)
"""


def test_copies_of_files_that_were_replaced_are_deleted_while_the_run_lives(job):
    _, found = job("replaced", *python(REPLACE), options=["--fetch", "whole"])
    assert found["copied_files"] >= 2
    (level,) = found["levels"]
    assert level["copies"] == 1


REMOVE = """
import os, time
from forebay import _native
def copied():
    return _native.run_usage()[0]["copied_files"]
open("a", "rb").read()
while not copied():
    time.sleep(0.05)
time.sleep(1.1)
os.unlink("a")
while copied() < 2:
    open("b", "rb").read()
    time.sleep(0.05)
"""


def test_a_copy_whose_source_was_removed_makes_room(job):
    _, found = job("gone", *python(REMOVE), options=["--fetch", "whole"], size="1MiB")
    (level,) = found["levels"]
    assert (found["copied_files"], level["copies"]) == (2, 1)


# Opens all files until they are copied, and once more, in one process that maps each table in turn.
MANY = """
import os, sys
from forebay import _native
count = int(sys.argv[1])
def opened():
    for number in range(count):
        os.close(os.open(f"{number}", os.O_RDONLY))
def usage():
    return _native.run_usage()[0]
while usage()["copied_files"] < count:
    opened()
before = usage()["opens_served"]
opened()
print(usage()["opens_served"] - before)
"""


@pytest.mark.skipif(not support.LONG, reason="long: it makes tens of thousands of files")
def test_a_process_follows_as_many_tables_as_its_files_need(daemon, tmp_path):
    count = 25_000
    source, tier, summary = tmp_path / "data", tmp_path / "tier", tmp_path / "summary.json"
    source.mkdir()
    tier.mkdir()
    for number in range(count):
        (source / f"{number}").write_bytes(b"x")
    settle([source])
    where = ["--tier", f"{tier}:200MiB", "--source", source, "--json", summary, "--fetch", "whole"]
    words = [sys.executable, "-m", "forebay", "run", *where, "--", *python(MANY), str(count)]
    assert run(words, cwd=source)[0].decode() == f"{count}\n"
    assert json.loads(summary.read_text())["run"]["not_copied"] == {}
