"""The example for Ray Train runs where Ray is installed; the suite does not install it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import support

pytest.importorskip("ray.train", reason="the environment has no Ray: with what it needs, it takes 0.4 GB")


def test_the_example_trains_on_the_workers_of_ray_train(tmp_path):
    done = subprocess.run(
        [sys.executable, support.ROOT / "examples/ray_train.py"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 workers, 2 epochs, stopped after 27 steps: each sample once per epoch" in done.stdout
