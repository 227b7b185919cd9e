"""Several files as one dataset: what the command line tells of them, whatever the format."""

from __future__ import annotations

import json
import os

import pytest

from forebay import cli
from support.format_files import FORMATS, SAMPLE_BYTES, SAMPLES, write


@pytest.fixture(params=FORMATS)
def several(request, tmp_path):
    """Return the arguments that name three files of a format, and the files."""
    paths = [
        write(tmp_path / name, request.param, shift) for name, shift in (("c", 0), ("a", 64), ("b", 128))
    ]
    more = ["--record-bytes", str(SAMPLE_BYTES)] if request.param == "raw" else []
    if request.param in ("hdf5", "npy", "npz"):
        # Three files of one shape without labels: nothing in them says that they are shards.
        more = ["--sample-axis", "0"]
    return [*map(str, paths), "--format", request.param, *more], paths


def told(capsys, *arguments):
    status = cli.main([*arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_inspect_tells_of_every_file(several, capsys):
    arguments, paths = several
    status, found = told(capsys, "inspect", *arguments)
    assert (status, found["samples"], found["format"]) == (
        0,
        3 * SAMPLES,
        arguments[arguments.index("--format") + 1],
    )
    assert [one["path"] for one in found["shards"]] == [str(path) for path in paths]
    assert [one["bytes"] for one in found["shards"]] == [path.stat().st_size for path in paths]
    assert found["bytes"] == sum(path.stat().st_size for path in paths)


def test_verify_reads_every_file(several, capsys):
    arguments, _ = several
    status, found = told(capsys, "verify", *arguments)
    assert (status, found["samples"], found["bad_samples"]) == (0, 3 * SAMPLES, 0)
    assert found["read_bytes"] >= 3 * SAMPLES * SAMPLE_BYTES


def test_verify_names_the_one_of_several_files_that_is_cut(several, capsys):
    arguments, paths = several
    # Behind the last sample a tar file has at most 10,240 bytes.
    os.truncate(paths[1], paths[1].stat().st_size - 2 * SAMPLE_BYTES + 1)
    assert cli.main(["verify", *arguments]) == 1
    captured = capsys.readouterr()
    assert str(paths[1]) in captured.out + captured.err
    assert str(paths[0]) not in captured.out + captured.err
