"""The MPIs of the tests: Open MPI's wheel, in this environment, and MPICH's, in its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import support

# Longer than it takes to fetch 60 MB on a bad line [s]; with the wheels in pip's cache it takes 5.
INSTALL_WITHIN_S = 240

PACKAGES = ("numpy", "mpi4py", "mpich", "click", "msgspec", "rich")

# Starts ranks, on nodes of their own where their numbers by node are given, and passes on what they
# say.
DRIVER = """
import json, subprocess, sys
from contextlib import nullcontext
from forebay_lab.ranks import launch
from forebay_lab.cluster import Cluster

wanted = json.loads(sys.argv[1])
per_node = wanted["per_node"]
with Cluster(len(per_node)) if len(per_node) > 1 else nullcontext() as cluster:
    command = launch.command(sum(per_node), wanted["program"], cluster, per_node)
    command = ["timeout", "-s", "KILL", str(wanted["deadline_s"]), *command]
    done = subprocess.run(command, env=launch.environment(), stdin=subprocess.DEVNULL, check=False)
sys.exit(done.returncode)
"""

PRELUDE = """
import json, os, sys
import forebay
def emit(value):
    # One write call per line, so that lines of several ranks do not mix.
    os.write(1, f"EMIT {json.dumps(value)}\\n".encode())
"""


@dataclass(frozen=True)
class Mpi:
    """One MPI."""

    name: str
    python: Path

    @property
    def mpiexec(self) -> Path:
        return self.python.parent / "mpiexec"

    def run(
        self, path: Path, per_node: Sequence[int], code: str, *arguments: object
    ) -> subprocess.CompletedProcess[str]:
        """Run code on ranks, under ``python -m mpi4py``; several nodes are namespaces."""
        script = path / "rank.py"
        script.write_text(PRELUDE + code)
        program = [str(script), *map(str, arguments)]
        wanted = {"program": program, "per_node": per_node, "deadline_s": support.DEADLINE_S}
        return subprocess.run(
            [self.python, "-c", DRIVER, json.dumps(wanted)],
            env={**os.environ, "PYTHONPATH": support.PACKAGES},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * support.DEADLINE_S,
            check=False,
        )


def emitted(done: subprocess.CompletedProcess[str]) -> list[object]:
    """What the ranks emitted, sorted."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("EMIT ")]
    return sorted((json.loads(line.removeprefix("EMIT ")) for line in lines), key=json.dumps)


def open_mpi() -> Mpi:
    return Mpi("Open MPI", Path(sys.executable))


def install_mpich(path: Path) -> Mpi:
    """Make an environment with MPICH's wheel; skips where it cannot be had."""
    try:
        for command in (
            # Without a pip of its own, which would take as long as the packages.
            [sys.executable, "-m", "venv", "--without-pip", path],
            [
                *(sys.executable, "-m", "pip", "--python", path / "bin/python"),
                *("install", "--quiet", "--disable-pip-version-check"),
                *PACKAGES,
            ],
        ):
            subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=INSTALL_WITHIN_S,
                check=True,
            )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the wheel of MPICH was not installed within {INSTALL_WITHIN_S} s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the wheel of MPICH cannot be installed: {error.stderr.strip().splitlines()[-1:]}")
    return Mpi("MPICH", path / "bin/python")
