"""Every example runs as its first lines say, and the README of the folder lists it."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import support

EXAMPLES = support.ROOT / "examples"
# Examples that import one of these run in tests/frameworks.
FRAMEWORKS = {
    "albumentations", "datasets", "dlio_benchmark", "flax", "grain", "jax", "keras", "lightning", "litdata",
    "nvidia", "optax", "ray", "tensorflow", "torch", "torchdata", "torchvision",
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Return the packages that a file imports, and ``torch`` for ``forebay.torch``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("forebay.").partition(".")[0] for name in names}


PATHS = sorted(EXAMPLES.glob("*.py"))
OWN = [path for path in PATHS if not imports(path) & FRAMEWORKS]


def command(path: Path) -> list[str]:
    """Return the command in the docstring of an example that runs it."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    (found,) = re.findall(rf"^ *(.*\bexamples/{re.escape(path.name)}.*)$", docstring, flags=re.MULTILINE)
    return shlex.split(found)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_an_example_runs_as_its_docstring_says(path, tmp_path, daemon):
    words = command(path)
    places = {
        "python": [sys.executable, "-W", "error"],
        "mpiexec": [str(Path(sys.executable).parent / "mpiexec")],
        f"examples/{path.name}": [str(path)],
    }
    assert set(places) >= {words[0], words[-1]}
    (tmp_path / "scratch").mkdir()
    done = subprocess.run(
        [part for word in words for part in places.get(word, [word])],
        env={**os.environ, **support.MPI_ENVIRONMENT, "TMPDIR": str(tmp_path / "scratch")},
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    daemon.end()
    assert not list((tmp_path / "scratch").iterdir()), "an example leaves nothing behind"
    assert not list((tmp_path / "work").iterdir())


def test_the_readme_lists_each_example_once():
    listed = re.findall(
        r"^\| \[([\w.]+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), flags=re.MULTILINE
    )
    assert sorted(listed) == [path.name for path in PATHS]


def test_each_other_example_is_run_by_a_test_of_frameworks():
    texts = "".join(path.read_text() for path in (support.ROOT / "tests/frameworks").glob("*.py"))
    for path in set(PATHS) - set(OWN):
        assert re.search(rf"\b{path.stem}\b", texts), f"no test of tests/frameworks names {path.stem}"
