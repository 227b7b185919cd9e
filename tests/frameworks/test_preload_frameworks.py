"""Frameworks under the preload library: the same output as without it, from copies."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import support
from frameworks.served_programs import FILES, check_same, write_files
from support.tiering import settle


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("frameworks") / "data")


def test_torch_saves_and_loads_among_the_sources(make_copies, tmp_path):
    torch = pytest.importorskip("torch")
    data = tmp_path / "data"
    data.mkdir()
    torch.save({"x": torch.arange(1000)}, data / "model.pt")
    program = (
        "import torch\nfor turn in range(2):\n"
        "    found = torch.load('model.pt', mmap=turn == 1); print(found['x'].sum().item())\n"
    )
    check_same(make_copies(data), tmp_path, program, 2)


def test_tensorflow_reads_copies(make_copies, source, tmp_path):
    pytest.importorskip("tensorflow", reason="tensorflow-cpu could not be had")
    program = (
        # Its log has times.
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 2)\n"
        "import tensorflow as tf\nfiles = tf.data.Dataset.list_files('*.bin', shuffle=False)\n"
        "files = files.map(tf.io.read_file, num_parallel_calls=2)\n"
        "for turn in range(2): print([hash(one.numpy()) for one in files])\n"
        "with tf.io.TFRecordWriter('/dev/null') as writer: writer.write(b'x')\n"
        "print(tf.io.gfile.stat('00.bin').length, len(tf.io.gfile.GFile('01.bin', 'rb').read()))\n"
    )
    check_same(make_copies(source), tmp_path, program, 2 * FILES)


RANK = """
import json, os, pathlib, sys, zlib
import torch.distributed
torch.distributed.init_process_group("gloo")
sums = [zlib.crc32(path.read_bytes()) for path in sorted(pathlib.Path(sys.argv[1]).iterdir())]
total = torch.tensor(sums)
torch.distributed.all_reduce(total)
os.write(1, f"EMIT {json.dumps([torch.distributed.get_rank(), sums, total.tolist()])}\\n".encode())
torch.distributed.destroy_process_group()
"""


def test_ranks_of_torchrun_share_a_daemon_and_its_copies(daemon, source, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    settle([source])
    (tmp_path / "tier").mkdir()
    script, summary = tmp_path / "rank.py", tmp_path / "summary.json"
    script.write_text(RANK)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    program = [*launcher, script, source]
    command = [sys.executable, "-m", "forebay", "run", "--tier", f"{tmp_path / 'tier'}:64MiB", "--stage"]
    command += ["--source", source, "--json", summary, "--", *program]

    def ranks(words):
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=support.DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("EMIT ")]
        return sorted(json.loads(line.removeprefix("EMIT ")) for line in lines)

    expected = ranks(program)
    assert [rank for rank, *_ in expected] == [0, 1]
    assert ranks(command) == expected
    assert len(daemon.pids()) == 1
    found = json.loads(summary.read_text())["run"]
    # Files of numbers, and the array.
    files = FILES + 1
    assert (found["copied_files"], found["opens"], found["opens_served"]) == (files, 2 * files, 2 * files)
