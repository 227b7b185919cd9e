"""The examples for Keras, JAX, Grain and image libraries, and the programs of their pages, run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import support

EXAMPLES = {
    "keras_tfrecord": ("tensorflow", "the same weights as without a stop"),
    "jax_hdf5": ("jax", "2 devices, weights"),
    "grain_pipeline": ("grain", "20 batches after the state: the same"),
    "albumentations_augment": ("albumentations", "equal for 1 and 4 threads"),
    # Its packages take 1 GB, so the environment of the tests lacks them.
    "dali_pipeline": ("nvidia.dali", "step 2: images (16, 64, 64, 3)"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, tmp_path):
    framework, says = EXAMPLES[name]
    pytest.importorskip(framework, reason=f"{framework} could not be had")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, support.ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path,
        env={**os.environ, **flags},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert "forebay" not in done.stderr, "an example warns of nothing"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("page", "programs"), [("tensorflow", 6), ("jax", 5)])
def test_the_programs_of_a_page_run(page, programs, capsys):
    pytest.importorskip(page, reason=f"{page} could not be had")
    text = (support.ROOT / f"docs/{page}.md").read_text()
    found = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(found) == programs
    names: dict[str, object] = {}
    for program in found:
        exec(compile(program, f"{page}.md", "exec"), names)
    assert names["state"]["version"]
