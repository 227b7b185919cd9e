"""Start the ranks of one run as plain processes, as `mpiexec` does with MPI.

``python -m forebay_lab.bench.processes RUN.json`` starts one process per rank, each with a socket
for barriers. The first rank that fails ends all; its exit code is this process's. All ranks stay in
one session, which the process that started this one can end as a whole
(`forebay_lab.ranks.launch`).
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forebay_lab.ranks.barrier import BarrierServer

_LOOK_S = 0.05
_GRACE_S = 2.0


def command(run: Path) -> list[str]:
    """Return the command that starts the ranks of a run."""
    return [sys.executable, "-m", "forebay_lab.bench.processes", str(run)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks, serve their meetings, wait for their end."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    run = json.loads(Path(path).read_text("utf-8"))
    ranks = run["ranks"]
    # On an emulated cluster: what runs a program on the rank's node.
    enter = [run["enter"][node] for node, of_node in enumerate(run["nodes"]) for _ in of_node]
    # Python leaves a killed parent's children alone; this turns the usual way of ending into an
    # exit that does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pairs = [socket.socketpair() for _ in range(ranks)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, (_, theirs) in enumerate(pairs):
            prefix = [*run["prefix"], str(rank)] if run["prefix"] else []
            program = [*enter[rank], *prefix, sys.executable, "-m", "forebay_lab.bench.rank", path]
            program += ["--rank", str(rank), "--barrier", str(theirs.fileno())]
            processes.append(subprocess.Popen(program, pass_fds=[theirs.fileno()]))
            theirs.close()
        return _serve(BarrierServer([ours for ours, _ in pairs]), processes)
    finally:
        _end(processes)
        for ours, _ in pairs:
            ours.close()


def _serve(server: BarrierServer, processes: list[subprocess.Popen[bytes]]) -> int:
    looked = time.monotonic()
    while True:
        server.serve(_LOOK_S)
        if time.monotonic() - looked < _LOOK_S:
            continue
        looked = time.monotonic()
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                print(f"bench: rank {rank} ended with exit code {code}", file=sys.stderr)
                return code if code > 0 else 1
        if None not in codes:
            return 0


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    left = [process for process in processes if process.poll() is None]
    for process in left:
        process.terminate()
    end = time.monotonic() + _GRACE_S
    for process in left:
        try:
            process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
