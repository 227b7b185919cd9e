"""The one section."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from forebay_lab.bench.turns import in_turn
from forebay_lab.cluster import Cluster
from studies.harness import cargo
from studies.harness.sections import Row, Scope, Study

SIZES = ((8, 5000), (47, 5000), (4096, 2000), (8 << 20, 40))
"""Bytes of a message, and trips; those of the example `links`, too."""
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


def links(scope: Scope) -> list[Row]:
    """Round trips over a link and over plain TCP, on one node and between two."""
    program = str(cargo.example("forebay-engine", "links"))
    sizes = json.dumps(SIZES)
    kinds = {
        "link": lambda end, directory, address: [program, end, directory],
        "plain": lambda end, directory, address: [
            sys.executable,
            "-c",
            PLAIN,
            end,
            directory,
            address,
            sizes,
        ],
    }
    rows = []
    with places() as where:
        for place, (on, address) in where.items():

            def ends(command: Any, on: Any = on, address: str = address) -> list[Row]:
                with tempfile.TemporaryDirectory() as directory:
                    return pair([on(end, command(str(end), directory, address)) for end in (0, 1)])

            measures = {kind: partial(ends, command) for kind, command in kinds.items()}
            found = in_turn(measures, scope.repetitions, warm_ups=0)
            for number, size in enumerate(one["bytes"] for one in found["plain"][0]):
                link, plain = (
                    statistics.median(run[number]["median_s"] for run in found[kind]) for kind in kinds
                )
                row = {"where": place, "message_bytes": size, "link_us": link * 1e6, "tcp_us": plain * 1e6}
                row["ratio"] = link / plain
                if size >= 1 << 20:
                    row["link_mb_s"] = 2 * size / link / 1e6
                rows.append(row)
    return rows


STUDY = Study(sections={"links": links}, repetitions=5)
