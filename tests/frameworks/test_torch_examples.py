"""The examples for torch and Lightning run as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tests.docs import test_migrating
from tests.docs.test_migrating import data  # noqa: F401

import support

TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "localhost:0",
]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([*TORCHRUN, "--nproc-per-node", "2", "examples/pytorch_ddp.py"], "24 steps, stopped after 17"),
        ([sys.executable, "examples/lightning_datamodule.py"], "64 steps, stopped after 45"),
    ],
    ids=["pytorch_ddp", "lightning_datamodule"],
)
def test_an_example_runs_and_leaves_nothing_behind(tmp_path, command, said):
    (tmp_path / "scratch").mkdir()
    done = subprocess.run(
        [*command[:-1], support.ROOT / command[-1]],
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert not list((tmp_path / "work").iterdir())
    # Lightning asks MPI, and torchrun makes a directory: neither removes its own.
    left = [path for path in (tmp_path / "scratch").iterdir() if not path.name.startswith(("ompi", "torch"))]
    assert not left


@pytest.mark.filterwarnings("default")
def test_the_programs_of_the_page_run(monkeypatch):
    page = (support.ROOT / "docs/pytorch.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(programs) == 6
    names: dict[str, object] = {}
    for program in programs:
        exec(compile(program, "pytorch.md", "exec"), names)
    assert names["loader"].epoch == names["valid"].epoch == 2
    assert names["samples"] == 2_000
    # The last batch has what seven others of 256 have left.
    assert names["batch"]["image"].shape == (208, 3, 32, 32)


@pytest.mark.parametrize("text", test_migrating.OF_TORCH, ids=["DataLoader", "WebDataset"])
def test_the_code_to_write_instead_of_another_loader_runs(text, data):  # noqa: F811
    test_migrating.run_page(text, data)
