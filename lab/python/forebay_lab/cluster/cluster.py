"""A cluster from the outside: run commands on nodes, cut off or kill nodes, end the cluster."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from forebay._core import ForebayError
from forebay_lab.cluster.init import NODE_NAMESPACES, PLACE
from forebay_lab.pfs.mounts import list_mounts, may_mount

__all__ = ["Cluster", "ClusterError", "missing"]

PROGRAMS = ("unshare", "nsenter", "mount", "umount", "hostname", "ip")

MAX_NODES = 200
"""More than anyone emulates on one machine, and fewer than a bridge has ports (1,024)."""

SHARED_MEMORY_BYTES = 2 << 30
"""Limit of a node's ``/dev/shm``; memory is taken as it is used."""

_UP_WITHIN_S, _DOWN_WITHIN_S = 60.0, 30.0


class ClusterError(ForebayError, OSError):
    """A cluster could not be emulated; the message says why."""


def missing() -> str | None:
    """Return why nodes cannot be namespaces here; None if they can, without starting any."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    if not may_mount() and not _has_user_namespaces():
        return "not root, and user namespaces are not allowed"
    return None


def _has_user_namespaces() -> bool:
    try:
        return int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0
    except (OSError, ValueError):
        return False


class Cluster:
    """Emulated nodes, up until `close`.

    Parameters
    ----------
    nodes : int
        How many.
    mounts : sequence of sequences of path, optional
        For each node, the mounts of the emulated file system that it is to see; of others it sees
        none. They must be there already, and must be unmounted only after the cluster's end.
    link_rate : int, optional
        Rate of the link of each node, in each direction [bit/s].

    Attributes
    ----------
    names : tuple of str
        Host names of the nodes.

    Raises
    ------
    ClusterError
        If it cannot be made; the message says why.
    """

    def __init__(
        self,
        nodes: int,
        mounts: Sequence[Sequence[str | os.PathLike[str]]] | None = None,
        *,
        link_rate: int | None = None,
    ) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise ClusterError(f"cluster: expected from 1 to {MAX_NODES} nodes, found {nodes}")
        if (reason := missing()) is not None:
            raise ClusterError(f"cluster of {nodes} nodes: {reason}")
        if link_rate is not None and shutil.which("tc") is None:
            raise ClusterError(f"cluster of {nodes} nodes: a rate of links needs the program tc (iproute2)")
        self.names = tuple(f"node{number}" for number in range(nodes))
        self._user = [] if may_mount() else ["--user", "--map-root-user"]
        points = [[os.path.realpath(point) for point in of_node] for of_node in mounts or [()] * nodes]
        command = ["unshare", *self._user, *NODE_NAMESPACES]
        # Mounts that go on the machine go here, too, where its mounts are shared.
        command += ["--propagation", "slave", "--fork", "--kill-child", "--mount-proc"]
        command += [sys.executable, "-m", "forebay_lab.cluster.init"]
        starter = os.pidfd_open(os.getpid())
        # Read only when something goes wrong.
        self._messages = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        try:
            self._init = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                text=True,
                pass_fds=(starter,),
                # Ctrl-C on a terminal is for the process that started the cluster.
                start_new_session=True,
            )
        except BaseException:
            self._messages.close()
            raise
        finally:
            os.close(starter)
        try:
            self._set_up(points, starter, link_rate)
        except BaseException:
            self.close()
            raise

    def _set_up(self, points: list[list[str]], starter: int, link_rate: int | None) -> None:
        wanted = {
            "names": self.names,
            "mounts": points,
            "emulated": [os.fspath(mount.mount) for mount in list_mounts()],
            "starter": starter,
            "link_rate": link_rate,
            "shared_memory_bytes": SHARED_MEMORY_BYTES,
        }
        assert self._init.stdin is not None
        assert self._init.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._init.stdin.write(json.dumps(wanted) + "\n")
            self._init.stdin.flush()
            if select.select([self._init.stdout], [], [], _UP_WITHIN_S)[0]:
                line = self._init.stdout.readline()
        answer = json.loads(line) if line else {"error": self._said()}
        if "error" in answer:
            raise ClusterError(f"cluster of {len(self.names)} nodes: {answer['error']}")

    def _said(self) -> str:
        self._messages.seek(0)
        return self._messages.read().strip() or f"it was not up within {_UP_WITHIN_S:g} s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- programs ---

    @property
    def shell(self) -> str:
        """The stand-in for ssh, a path that a launcher in the hub finds."""
        return str(PLACE / "shell")

    def in_hub(self, program: Sequence[str]) -> list[str]:
        """Return the command that runs a program in the hub, which reaches all nodes."""
        target = str(self._init.pid)
        namespaces = ["--net", "--uts", "--ipc", "--mount", f"--pid=/proc/{target}/ns/pid_for_children"]
        user = ["--user", "--preserve-credentials"] if self._user else []
        # The working directory is looked up anew, so that it is the hub's own and not the
        # machine's.
        inside = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(Path.cwd()), *program]
        return ["nsenter", "--target", target, *user, *namespaces, "--", *inside]

    def on(self, node: int, program: Sequence[str]) -> list[str]:
        """Return the command that runs a program on a node.

        Signals sent to that command do not reach the program: end it by `clear`, or by ``kill`` run
        on the node, where its process has the number that it sees itself.
        """
        return self.in_hub([str(PLACE / "on"), self.names[node], *program])

    def call(self, node: int, *program: str) -> str:
        """Run a short program on a node and return what it says.

        Raises
        ------
        ClusterError
            If it ends with another code than 0.
        """
        return self._call(self.on(node, program), f"{self.names[node]}: {' '.join(program)}")

    def clear(self) -> None:
        """Kill every process on every node that is up, but keep the nodes."""
        for name in self.names:
            # All but the node's first process and the shell itself.
            command = self.in_hub([str(PLACE / "on"), name, "/bin/sh", "-c", "kill -9 -1"])
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    def kill(self, node: int) -> None:
        """Kill a node: all its processes, its network and its memory are gone at once."""
        self._call(self.in_hub(["/bin/sh", "-c", f"kill -9 $(cat {PLACE}/{self.names[node]})"]), "kill")

    def unplug(self, node: int) -> None:
        """Cut a node off: the network drops all it sends and receives; its processes live."""
        self._call(self.in_hub(["ip", "link", "set", f"link{node}", "down"]), "unplug")

    def plug(self, node: int) -> None:
        """End `unplug`."""
        self._call(self.in_hub(["ip", "link", "set", f"link{node}", "up"]), "plug")

    @staticmethod
    def _call(command: list[str], what: str) -> str:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            raise ClusterError(
                f"{what}: expected exit code 0, found {done.returncode}\n{done.stderr.strip()}"
            )
        return done.stdout

    # --- close ---

    def close(self) -> None:
        """End all processes of the cluster and remove it; nothing is left on return."""
        init = self._init
        for pipe in (init.stdin, init.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            init.wait(timeout=_DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            # --kill-child takes the first process of the cluster along.
            init.kill()
            init.wait()
        self._messages.close()
