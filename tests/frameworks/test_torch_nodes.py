"""Ranks on several nodes meet through torchrun's store or an initialised torch.distributed."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import support

RANK = """
import json, os, sys
rank = int(os.environ["RANK"])
os.environ["FOREBAY_NODE"] = f"node{rank // 2}"
# torchrun starts all ranks of this machine as one node.
os.environ["LOCAL_WORLD_SIZE"] = "2"
os.environ["LOCAL_RANK"] = str(rank % 2)
import torch.distributed
import forebay
from forebay._job import rank0, tcp
if sys.argv[2] == "initialised":
    torch.distributed.init_process_group("gloo")
secrets = []
really = tcp.find_rank0
def find_rank0(*arguments):
    found = really(*arguments)
    secrets.append(len(found.secret))
    return found
tcp.find_rank0 = find_rank0
found = []
for name in ("train", "test"):
    with forebay.Loader(sys.argv[1], 4, node_memory="32MiB", name=name) as loader:
        found.append(sorted(int(number) for batch in loader for number in batch.indices))
os.write(1, f"EMIT {json.dumps([rank, secrets, found])}\\n".encode())
if sys.argv[2] == "initialised":
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["initialised", "launched"])
def test_ranks_of_several_nodes_meet_through_a_store_of_torch(tmp_path, how):
    path, script = tmp_path / "samples.npy", tmp_path / "rank.py"
    np.save(path, np.zeros((64, 10), np.uint8))
    script.write_text(RANK)
    command = [
        sys.executable,
        "-W",
        "error::RuntimeWarning",
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
    ]
    done = subprocess.run(
        [*command, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", script, path, how],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("EMIT ")]
    found = sorted(json.loads(line.removeprefix("EMIT ")) for line in lines)
    assert [one[:2] for one in found] == [[rank, [32, 32]] for rank in range(4)]
    for loader in (0, 1):
        assert sorted(number for *_, one in found for number in one[loader]) == list(range(64))
