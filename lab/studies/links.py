"""The figures of docs/results/links.md: ``python lab/studies/links.py [--save]``.

Round trips over a link between two leaders, on one node and between two emulated ones (network
namespaces on a bridge), beside those of a plain TCP connection between two Python processes at the
same places: what the machine and its kernel allow.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forebay_lab.cluster import Cluster
from sections import Row, run_sections

ROOT = Path(__file__).resolve().parents[2]
REPETITIONS = 5
WITHIN_S = 120

# A connection without anything around it; end 1 sends back what comes.
PLAIN = """
import json, pathlib, socket, statistics, sys, time
end, directory, address = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
sizes = json.loads(sys.argv[4])
def take(connection, view):
    while view:
        view = view[connection.recv_into(view):]
if end == 1:
    listener = socket.create_server((address, 0))
    (directory / "draft").write_text(str(listener.getsockname()[1]))
    (directory / "draft").rename(directory / "port")
    connection, _ = listener.accept()
else:
    while not (directory / "port").exists():
        time.sleep(0.005)
    connection = socket.create_connection((address, int((directory / "port").read_text())))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
found = []
for size, trips in sizes:
    buffer, times = memoryview(bytearray(size)), []
    for _ in range(trips):
        begun = time.perf_counter()
        if end == 0:
            connection.sendall(buffer)
        take(connection, buffer)
        if end == 1:
            connection.sendall(buffer)
        times.append(time.perf_counter() - begun)
    found.append({"bytes": size, "trips": trips, "median_s": statistics.median(times)})
if end == 0:
    print(json.dumps(found))
"""


def pair(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Run both ends; return what end 0 says."""
    with subprocess.Popen(commands[1]) as other:
        try:
            done = subprocess.run(
                commands[0], stdout=subprocess.PIPE, text=True, timeout=WITHIN_S, check=True
            )
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.wait(2)
            other.kill()
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def places() -> Iterator[dict[str, Any]]:
    """Where two ends can be: what runs a command there, and the address of end 1."""
    with Cluster(2) as cluster:
        yield {
            "one node": (lambda _, command: command, "127.0.0.1"),
            "two nodes": (cluster.on, "node1"),
        }


def links(_tiny: bool) -> list[Row]:
    """Round trips over a link and over plain TCP, on one node and between two."""
    subprocess.run(
        ["cargo", "build", "-q", "--release", "-p", "forebay-engine", "--example", "links"],
        cwd=ROOT,
        check=True,
    )
    program = ROOT / "target/release/examples/links"
    found: dict[tuple[str, int, str], list[float]] = {}
    with places() as where:
        for repetition in range(REPETITIONS):
            for place, (on, address) in where.items():
                # In turn, and the first in turn first.
                for kind in ("link", "plain")[:: 1 if repetition % 2 else -1]:
                    with tempfile.TemporaryDirectory() as directory:
                        if kind == "link":
                            commands = [[str(program), str(end), directory] for end in (0, 1)]
                        else:
                            sizes = json.dumps([[8, 5000], [47, 5000], [4096, 2000], [8 << 20, 40]])
                            commands = [
                                [sys.executable, "-c", PLAIN, str(end), directory, address, sizes]
                                for end in (0, 1)
                            ]
                        for row in pair([on(end, command) for end, command in enumerate(commands)]):
                            found.setdefault((place, row["bytes"], kind), []).append(row["median_s"])
    rows = []
    for place, size in dict.fromkeys((place, size) for place, size, _ in found):
        link, plain = (statistics.median(found[place, size, kind]) for kind in ("link", "plain"))
        row = {"where": place, "message_bytes": size, "link_us": link * 1e6, "tcp_us": plain * 1e6}
        row["ratio"] = link / plain
        if size >= 1 << 20:
            row["link_mb_s"] = 2 * size / link / 1e6
        rows.append(row)
    return rows


if __name__ == "__main__":
    run_sections(__doc__, "links", {"links": links}, {}, bool)
