"""Surroundings of bench rows: variables, a wrapper, tier mounts, node memory, link rates."""

from __future__ import annotations

import shlex

import pytest

from forebay import OptionError
from forebay_lab.bench import baselines, strategies
from forebay_lab.bench.node_memory import memory_groups
from forebay_lab.bench.settings import Settings
from forebay_lab.bench.surroundings import Surroundings, parse_surroundings
from support import cluster as nodes
from support import emulator
from support.bench import run, run_json

RANKS, REPETITIONS = 2, 2
SMALL = ("--ranks", RANKS, "--batch-size", 16, "--repetitions", REPETITIONS)


def has_memory_groups():
    try:
        with memory_groups(1, 1 << 30):
            return True
    except OptionError:
        return False


needs_memory_groups = pytest.mark.skipif(not has_memory_groups(), reason="no memory control groups")


# --- what is asked for ---


def test_variables_and_a_wrapper_belong_to_the_rows_that_name_them():
    found = parse_surroundings(["a:X=1", "a:Y=b=c", "b:X="], ["a:nice -n 5 'a b'"])
    assert found == {
        "a": Surroundings({"X": "1", "Y": "b=c"}, ("nice", "-n", "5", "a b")),
        "b": Surroundings({"X": ""}),
    }
    rows = strategies.parse("forebay,forebay@shuffle+a,pylmdb-skipping+b", "group", baselines.find(), found)
    assert [row.name for row in rows] == [
        "forebay@group",
        "forebay@shuffle+a",
        "pylmdb-skipping@sequential+b",
    ]
    assert [row.surroundings.wrapper for row in rows] == [(), ("nice", "-n", "5", "a b"), ()]


@pytest.mark.parametrize(
    ("environment", "wrappers", "values"),
    [
        (["X=1"], [], ("X=1",)),
        (["a:X"], [], ("a:X",)),
        (["a:1X=2"], [], ("a:1X=2",)),
        ([], ["nice"], ("nice",)),
        ([], ["a: "], ()),
        ([], ["a:nice 'x"], ()),
        ([], ["a:nice", "a:time"], ("two",)),
    ],
)
def test_surroundings_of_another_form_are_refused(environment, wrappers, values, says):
    with says(OptionError, *values):
        parse_surroundings(environment, wrappers)


@pytest.mark.parametrize(("text", "values"), [("forebay+b,forebay+a", ("b",)), ("forebay", ("a",))])
def test_names_of_surroundings_are_known_and_used(text, values, says):
    with says(OptionError, *values):
        strategies.parse(text, "group", {}, {"a": Surroundings()})


def test_a_tier_that_no_node_has_is_refused(capsys, data):
    status, _, err = run(
        capsys, data, "--strategies", "forebay+a", "--environment", "a:X={tier1}/x", "--tier", "nfs"
    )
    assert status == 2
    assert "{tier1}" in err


@pytest.mark.parametrize("options", [{"nodes": 1}, {"nodes": 2, "node_emulation": "environment"}])
def test_a_rate_of_links_needs_links(options, says):
    with says(OptionError):
        Settings(ranks=4, link_rate=10**9, **options)


# --- what the ranks run in ---


@pytest.fixture
def wrapper(tmp_path):
    """A wrapper that appends what a shell command prints to a file, and the file's lines."""

    def make(command):
        script = tmp_path / "wrapper"
        seen = tmp_path / "seen"
        script.write_text(f'#!/bin/sh\n{{ {command}; }} >> {shlex.quote(str(seen))} || exit 3\nexec "$@"\n')
        script.chmod(0o755)
        return f"w:{script} ", lambda: seen.read_text().splitlines()

    return make


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["processes", pytest.param("mpi", marks=pytest.mark.mpi)])
def test_each_rank_of_the_row_is_started_through_the_wrapper_with_its_variables(
    capsys, data, wrapper, launcher
):
    command, seen = wrapper('echo "$SPECIAL"')
    status, result = run_json(
        capsys, data, *SMALL, "--launcher", launcher, "--strategies", "forebay,forebay+w",
        "--environment", "w:SPECIAL=a b", "--wrapper", command,
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    # One run verifies.
    assert seen() == ["a b"] * RANKS * (REPETITIONS + 1)
    assert [(row["name"], row["label"]) for row in result["rows"]] == [
        ("forebay@group", ""),
        ("forebay@group+w", "w"),
    ]
    assert result["rows"][1]["environment"] == {"SPECIAL": "a b"}


@pytest.mark.full
def test_a_wrapper_that_is_not_there_fails_its_row_only(capsys, data):
    status, result = run_json(
        capsys, data, *SMALL, "--launcher", "processes", "--strategies", "forebay,forebay+w",
        "--wrapper", "w:/no/such/program",
    )  # fmt: skip
    assert status == 1
    assert [row["status"] for row in result["rows"]] == ["ok", "failed"]
    assert "cannot execute /no/such/program" in result["rows"][1]["error"]


@pytest.mark.full
@emulator.needs_fuse
def test_tiers_are_emulated_writable_empty_in_each_run_and_a_node_has_its_own(capsys, data, wrapper):
    command, seen = wrapper(
        'ls "$TIER" | wc -l; stat -f -c %T "$TIER"; echo "$TIER"; sleep 0.2; echo x > "$TIER/$$"'
    )
    status, result = run_json(
        capsys, data, *SMALL, "--nodes", 2, "--node-emulation", "environment", "--launcher", "processes",
        "--pfs", "nfs", "--time-scale", 2, "--tier", "local-nvme", "--strategies", "forebay+w", "--skip-verify",
        "--environment", "w:TIER={tier}", "--wrapper", command,
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    lines = seen()
    assert lines.count("0") == RANKS * REPETITIONS, lines
    assert lines.count("fuseblk") + lines.count("fuse") == RANKS * REPETITIONS, lines
    assert len({line for line in lines if line.startswith("/")}) == 2
    assert result["tiers"] == ["local-nvme"]


@needs_memory_groups
def test_a_node_has_so_much_memory(capsys, data, wrapper):
    command, seen = wrapper("cat /proc/self/cgroup")
    status, result = run_json(
        capsys, data, *SMALL, "--nodes", 2, "--node-emulation", "environment", "--launcher", "processes",
        "--strategies", "forebay+w", "--skip-verify", "--wrapper", command, "--node-memory", "700MiB",
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    groups = {line.rpartition("/")[2] for line in seen() if "forebay-bench-" in line}
    assert {group.rpartition("-")[2] for group in groups} == {"node0", "node1"}
    assert result["node_memory_bytes"] == 700 << 20
    # The engine takes the limit of its group for that of the node.
    with memory_groups(1, 123 << 20) as (group,):
        limits = [int(file.read_text()) for file in group.glob("memory.limit_in_bytes")]
        limits += [int(file.read_text()) for file in group.glob("memory.max")]
        assert limits == [123 << 20]
    assert not group.exists()


@nodes.needs_nodes
def test_a_link_carries_no_more_than_its_rate(capsys):
    from forebay_lab.cluster import Cluster

    payload, rate = 1 << 20, 16 << 20
    with Cluster(2, link_rate=rate) as cluster:
        server = nodes.python(cluster, 0, RECEIVER)
        client = nodes.python(cluster, 1, SENDER.replace("PAYLOAD", str(payload)))
        code, out, err = server.finish()
        assert (code, client.finish()[0]) == (0, 0), err
    received, seconds = out.split()
    assert int(received) == payload
    # What the bucket lets through at once is not limited.
    assert float(seconds) >= (payload - (1 << 17)) * 8 / rate * 0.8


RECEIVER = """
import socket, time
with socket.create_server(("", 7777)) as server:
    server.settimeout(30)
    connection, _ = server.accept()
    begin, received = time.monotonic(), 0
    with connection:
        while piece := connection.recv(1 << 16):
            received += len(piece)
    print(received, time.monotonic() - begin)
"""

SENDER = """
import socket, time
end = time.monotonic() + 30
while True:
    try:
        connection = socket.create_connection(("node0", 7777), timeout=30)
        break
    except ConnectionRefusedError:
        if time.monotonic() > end:
            raise
        time.sleep(0.02)
with connection:
    connection.sendall(bytes(PAYLOAD))
"""


# --- epochs ---


@pytest.mark.full
@emulator.needs_fuse
def test_each_epoch_has_its_time_and_what_the_file_system_counted(capsys, data):
    status, out, err = run(
        capsys, data, *SMALL, "--epochs", 3, "--launcher", "processes", "--pfs", "nfs", "--time-scale", 1,
        "--cold", "--strategies", "forebay,pylmdb-contiguous",
    )  # fmt: skip
    assert status == 0, err
    assert out.count("by epoch:") == 2
    status, result = run_json(
        capsys, data, *SMALL, "--epochs", 3, "--launcher", "processes", "--pfs", "nfs", "--time-scale", 1,
        "--cold", "--strategies", "forebay,pylmdb-contiguous", "--skip-verify",
    )  # fmt: skip
    assert status == 0
    for row in result["rows"]:
        for one in row["repetitions"]:
            epochs = one["by_epoch"]
            assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2]
            assert len({epoch["samples"] for epoch in epochs}) == 1
            assert sum(epoch["requested_bytes"] for epoch in epochs) == one["requested_bytes"]
            assert sum(epoch["seconds"] for epoch in epochs) <= one["total_seconds"] + 1e-9
            fetched = [epoch["pfs"]["read_bytes"] for epoch in epochs]
            assert fetched[0] > 0
            assert sum(fetched) <= sum(node["read_bytes"] for node in one["pfs"]["nodes"])
