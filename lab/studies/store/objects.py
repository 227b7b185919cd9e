"""Samples as Python objects over sockets: ``objects.py serve|compare NAME=VALUE ...``.

A small baseline of our own, in the place of a store made of remote procedure calls: a client sends
the number of a sample, pickled, and waits for its array, pickled (``multiprocessing.connection``).
The server is a process for each connection, so no interpreter lock is shared.

Options and lines are those of ``crates/forebay-transport/examples/transfer.rs``, as far as they
apply here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing import Process, SimpleQueue
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

from forebay_lab.ranks.rusage import process_usage

WARM_UP = 0.2
"""Share of a run before bytes count, as in transfers."""
SHARE_BYTES = 64 << 20
ASK_CPU = -1
"""In the place of a sample's number."""


def main() -> None:
    """Serve samples, or ask for them in runs."""
    command, *words = sys.argv[1:]
    options = dict(word.split("=", 1) for word in words)
    host, port = options["address"].split(":")
    if command == "serve":
        serve((host, int(port)))
    else:
        compare((host, int(port)), options)


def serve(address: tuple[str, int]) -> None:
    """Start a process for each connection, which answers it; return when stdin ends."""
    if (process := os.fork()) == 0:
        share = np.random.default_rng(1).integers(0, 256, SHARE_BYTES, np.uint8)
        with Listener(address, backlog=64) as listener:
            print("ready", flush=True)
            while True:
                connection = listener.accept()
                if os.fork() == 0:
                    answer(connection, share)
                    os._exit(0)
                connection.close()
    sys.stdin.read()
    os.kill(process, 9)


def answer(connection: Connection, share: np.ndarray) -> None:
    """Send what is asked for, then the processor time of this process."""
    while True:
        number, sample_bytes = connection.recv()
        if number == ASK_CPU:
            connection.send(process_usage().cpu_seconds)
            return
        start = number * sample_bytes % (SHARE_BYTES - sample_bytes)
        connection.send(share[start : start + sample_bytes])


def compare(address: tuple[str, int], options: dict[str, str]) -> None:
    """Run each shape in rounds, in step with other nodes."""
    for _ in range(int(options["rounds"])):
        for sample_bytes in map(int, options["sample_bytes"].split(",")):
            for clients in map(int, options["clients"].split(",")):
                print("next", flush=True)
                sys.stdin.readline()
                print(
                    json.dumps(measure(address, clients, sample_bytes, float(options["seconds"]))), flush=True
                )
    print("{}", flush=True)


def measure(address: tuple[str, int], clients: int, sample_bytes: int, seconds: float) -> dict[str, Any]:
    """Run the clients, each in a process; return their rates and CPU time."""
    answers: SimpleQueue[tuple[int, int, float, float]] = SimpleQueue()
    processes = [
        Process(target=ask, args=(address, number, sample_bytes, seconds, answers))
        for number in range(clients)
    ]
    for one in processes:
        one.start()
    found = [answers.get() for _ in processes]
    for one in processes:
        one.join()
    gib = sum(received for _, received, _, _ in found) / (1 << 30)
    rates = [timely / (seconds * (1 - WARM_UP)) / 1e6 for timely, _, _, _ in found]
    return {
        "mode": "objects",
        "clients": clients,
        "sample_bytes": sample_bytes,
        "mb_per_s": sum(rates),
        "server_cpu_s_per_gib": sum(server for _, _, server, _ in found) / gib,
        "client_cpu_s_per_gib": sum(own for _, _, _, own in found) / gib,
        "of_clients": rates,
    }


def ask(address: tuple[str, int], number: int, sample_bytes: int, seconds: float, answers: Any) -> None:
    """Ask for random samples, one after the other."""
    generator = np.random.default_rng(number)
    with Client(address) as connection:
        warm, deadline = time.monotonic() + seconds * WARM_UP, time.monotonic() + seconds
        timely, received, now = 0, 0, 0.0
        while now < deadline:
            connection.send((int(generator.integers(1 << 30)), sample_bytes))
            received += connection.recv().nbytes
            now = time.monotonic()
            timely += sample_bytes if warm <= now < deadline else 0
        connection.send((ASK_CPU, 0))
        answers.put((timely, received, connection.recv(), process_usage().cpu_seconds))


if __name__ == "__main__":
    main()
