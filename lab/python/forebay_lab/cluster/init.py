"""The first process of a cluster: make hub and nodes, then wait for the end.

`forebay_lab.cluster.cluster` starts ``python -m forebay_lab.cluster.init`` as process 1 of new
namespaces. The process reads its configuration from standard input, sets up the hub, starts the
nodes, joins them by a bridge, and answers on standard output. It then waits until its standard
input is closed or the process of a pidfd has ended. When it ends, the kernel kills all processes of
its namespace, with those of the nodes' inner ones.

Processes of different nodes have different ids, as on real machines: LMDB's lock file, for one,
takes two processes with one id for the same. A process that only ignores SIGCHLD keeps a node up,
so that the kernel reaps the processes that end on the node.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

PLACE = Path("/dev/shm")
"""Of the hub: a memory file system of its own, for the few files of a cluster."""

NODE_NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")

_UP_WITHIN_S = 30.0

_NODE = """\
set -e
hostname {name}
for point in {hidden}; do umount --no-canonicalize --lazy "$point" || true; done
mount -t tmpfs -o mode=1777,size={shared_memory} none /dev/shm
echo {last_process} > /proc/sys/kernel/ns_last_pid || true
trap '' CHLD
echo up
exec sleep infinity >/dev/null 2>&1
"""

_ON = """\
#!/bin/sh
# Runs a program on a node: on NODE PROGRAM ARGUMENT...
init=$(cat {place}/$1) || exit 255
shift
exec nsenter --target "$init" --net --uts --ipc --mount --pid=/proc/$init/ns/pid_for_children -- \\
    /bin/sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
"""

_SHELL = """\
#!/bin/sh
# Stands in for ssh: leaves out options, runs the rest on the node with its shell.
while [ "${{1#-}}" != "$1" ]; do shift; done
node=${{1#*@}}
shift
exec {place}/on "$node" /bin/sh -c "$*"
"""


def main() -> int:
    """Make the cluster, report its processes, wait for its end."""
    wanted = json.loads(sys.stdin.readline())
    try:
        answer: dict[str, Any] = {"nodes": _make(wanted)}
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or ""
        answer = {"error": f"{error}\n{said}".strip()}
    print(json.dumps(answer), flush=True)
    if "error" in answer:
        return 1
    # What ends from now on is taken away by the kernel; what has ended already, here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _reap()
    waiting = select.poll()
    for descriptor in (sys.stdin.fileno(), wanted["starter"]):
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    waiting.poll()
    return 0


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _make(wanted: dict[str, Any]) -> list[int]:
    """Make hub and nodes; return the processes that keep the nodes, with ids of this namespace."""
    names: list[str] = wanted["names"]
    _run("hostname", "hub")
    _run("mount", "-t", "tmpfs", "-o", "mode=1777,size=64m", "none", str(PLACE))
    visible = {point for points in wanted["mounts"] for point in points}
    for point in wanted["emulated"]:
        if point not in visible:
            # A mount that is copied into this namespace would outlive its server's end. Where it
            # cannot be taken away (in a user namespace), it goes with the cluster.
            subprocess.run(["umount", "--no-canonicalize", "--lazy", point], capture_output=True, check=False)
    _write_hosts(names)
    for file, text in (("on", _ON), ("shell", _SHELL)):
        path = PLACE / file
        path.write_text(text.format(place=PLACE))
        path.chmod(0o755)
    _ip("link set lo up", "link add br0 type bridge", "addr add 10.77.255.254/16 dev br0", "link set br0 up")
    stride = _most_processes() // (len(names) + 1)
    inits = [
        _start(name, visible - set(points), wanted["shared_memory_bytes"], stride * (number + 1))
        for number, (name, points) in enumerate(zip(names, wanted["mounts"], strict=True))
    ]
    for number, (name, init) in enumerate(zip(names, inits, strict=True)):
        _wait_until_up(name, init)
        (PLACE / name).write_text(f"{init.pid}\n")
        _join(number, init.pid, wanted["link_rate"])
    return [init.pid for init in inits]


def _write_hosts(names: list[str]) -> None:
    lines = ["127.0.0.1 localhost", "::1 localhost", "10.77.255.254 hub"]
    lines += [f"{_address(number)} {name}" for number, name in enumerate(names)]
    hosts = PLACE / "hosts"
    hosts.write_text("\n".join(lines) + "\n")
    _run("mount", "--bind", str(hosts), "/etc/hosts")


def _address(number: int) -> str:
    return f"10.77.{(number + 1) // 250}.{(number + 1) % 250 + 1}"


def _most_processes() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def _start(
    name: str, hidden: set[str], shared_memory_bytes: int, last_process: int
) -> subprocess.Popen[bytes]:
    script = _NODE.format(
        name=name,
        hidden=" ".join(map(shlex.quote, sorted(hidden))),
        shared_memory=shared_memory_bytes,
        last_process=last_process,
    )
    return subprocess.Popen(
        ["unshare", *NODE_NAMESPACES, "--fork", "--kill-child", "--mount-proc", "/bin/sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _wait_until_up(name: str, init: subprocess.Popen[bytes]) -> None:
    assert init.stdout is not None
    said = b""
    end = time.monotonic() + _UP_WITHIN_S
    while select.select([init.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(init.stdout.fileno(), 4096)
        said += part
        if said.endswith(b"up\n"):
            return
        if not part:
            break
    raise OSError(f"{name} did not come up: {said.decode(errors='replace').strip() or 'it said nothing'}")


def _join(number: int, init: int, link_rate: int | None) -> None:
    """Join a node to the bridge; ``link_rate`` limits both directions [bit/s]."""
    link = f"link{number}"
    _ip(
        f"link add {link} type veth peer name eth0 netns /proc/{init}/ns/net",
        f"link set {link} master br0",
        f"link set {link} up",
    )
    _ip(
        "link set lo up",
        f"addr add {_address(number)}/16 dev eth0",
        "link set eth0 up",
        inside=("nsenter", "--target", str(init), "--net"),
    )
    if link_rate is not None:
        _limit(link, link_rate)
        _limit("eth0", link_rate, inside=("nsenter", "--target", str(init), "--net"))


def _limit(device: str, rate: int, *, inside: tuple[str, ...] = ()) -> None:
    """Limit what a device sends [bit/s]."""
    # A bucket of 10 ms, and of one segment that the kernel has not cut into packets at least.
    burst = max(rate // 8 // 100, 1 << 16)
    limit = ["rate", f"{rate}bit", "burst", str(burst), "latency", "50ms"]
    _run(*inside, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)


def _ip(*commands: str, inside: tuple[str, ...] = ()) -> None:
    _run(*inside, "ip", "-batch", "-", text="\n".join(commands) + "\n")


def _run(*command: str, text: str = "") -> None:
    subprocess.run(command, input=text, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
