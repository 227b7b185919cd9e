"""``forebay costs``: what it measures, and the files that it writes and reads."""

from __future__ import annotations

import json

import pytest

from forebay._core import FormatError, StorageError
from forebay_lab.bench import machine
from forebay_lab.simulate import costs, measure_costs
from forebay_lab.simulate.costs import MEANINGS, Costs
from support import run_command, run_command_json

DEFAULT = Costs.default()


def text(**changes):
    values = {**DEFAULT.as_json(), **changes}
    return "".join(f"{key} = {json.dumps(one)}\n" for key, one in values.items() if one is not None)


@pytest.fixture
def small(monkeypatch):
    """Measure little: the numbers mean nothing then."""
    for name, value in {
        "ROUNDS": 1, "FILE_BYTES": 8 << 20, "LIMIT_SECONDS": 0.02, "LOADERS": 1, "SAMPLES": 8192, "RECORDS": 100,
        "TURNS": 20,
    }.items():  # fmt: skip
        monkeypatch.setattr(measure_costs, name, value)


def test_each_cost_is_measured_and_written_for_a_simulation(capsys, tmp_path, small):
    path = tmp_path / "costs.toml"
    found = run_command_json(capsys, "costs", "--output", str(path))
    assert found["costs"]["machine"] == machine.describe()
    skipped = {note.partition(":")[0] for note in found["notes"]}
    serving = "serve_ns, serve_bytes_per_second"
    assert serving in skipped
    assert skipped <= {"pass_ns", "request_ns", serving}
    for key in ("plan_ns", "copy_bytes_per_second", "fault_ns", "wake_ns", "message_ns", "start_up_ns"):
        assert found["costs"][key] > 0, key
    written = costs.read(path)
    for key in MEANINGS:
        assert written.number(key) == pytest.approx(found["costs"][key], rel=1e-3)
    arguments = (
        "--workload",
        "cifar10-large",
        "--scale",
        "0.001",
        "--steps",
        "2",
        "--pfs",
        "nfs",
        "--seeds",
        "1",
    )
    simulated = run_command_json(capsys, "simulate", *arguments, "--costs", str(path))
    assert simulated["simulated"]["costs"] == written.as_json()


def test_the_table_compares_with_the_default(capsys, small):
    status, out, _ = run_command(capsys, "costs")
    assert status == 0
    rows = {cells[0]: cells[1:] for line in out.splitlines() if (cells := line.split())}
    for key in MEANINGS:
        assert float(rows[key][1]) == pytest.approx(DEFAULT.number(key), rel=1e-3)


def test_costs_survive_their_file(tmp_path):
    path = tmp_path / "costs.toml"
    odd = costs.msgspec.structs.replace(DEFAULT, machine='a "machine"\n\\ ü', locate_ns=0.0)
    costs.write(odd, path)
    assert costs.read(path) == odd


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(locate_ns=-1.0), "key locate_ns: expected a number of at least 0, found -1.0"),
        (text(wake_ns="5us"), "key wake_ns: expected a number, found '5us'"),
        (text(plan_ns=None), "key plan_ns: expected a number, found nothing"),
        (text(speed=1.0), "key speed: expected no key of this name, found 1.0"),
        (
            text(copy_bytes_per_second=0.0),
            "key copy_bytes_per_second: expected a number of at least 1, found 0.0",
        ),
        (text(machine=""), "key machine: expected"),
        (text(locate_ns=None) + "locate_ns = nan\n", "key locate_ns: expected"),
        ("locate_ns = ", "expected TOML, found: "),
        (b"\xff", "expected TOML, found: "),
    ],
)
def test_a_file_that_holds_no_costs_is_refused_with_file_and_key(tmp_path, content, message):
    path = tmp_path / "costs.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError) as caught:
        costs.read(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_no_other_file_is_overwritten(capsys, tmp_path, small):
    path = tmp_path / "data.bin"
    path.write_bytes(b"data")
    status, _, err = run_command(capsys, "costs", "--output", str(path))
    assert status == 1
    assert "expected TOML" in err
    assert path.read_bytes() == b"data"


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"absent\.toml"):
        costs.read(tmp_path / "absent.toml")
    with pytest.raises(StorageError, match=r"nowhere"):
        costs.write(DEFAULT, tmp_path / "nowhere" / "costs.toml")
