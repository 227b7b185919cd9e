"""Emulated nodes: what they own, what they share, how they are lost, and that nothing is left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forebay_lab import pfs
from forebay_lab.cluster import Cluster, ClusterError, missing
from forebay_lab.pfs import mounts
from support import cluster as nodes
from support import emulator

pytestmark = nodes.needs_nodes

ABOUT = """
import json, os, socket
print(json.dumps({
    "name": socket.gethostname(),
    "shared_memory": sorted(os.listdir("/dev/shm")),
    "first": open("/proc/1/cmdline").read().split("\\0")[0],
    "links": sorted(name for _, name in socket.if_nameindex()),
    "directory": os.getcwd(),
    "process": os.getpid(),
}))
"""

# Takes one connection and says what came.
SERVER = """
import socket
with socket.create_server(("", 7777)) as server:
    server.settimeout(30)
    connection, (address, _) = server.accept()
    with connection:
        print(address, connection.recv(100).decode())
"""

CLIENT = """
import socket, sys, time
end = time.monotonic() + 30
while True:
    try:
        with socket.create_connection((sys.argv[1], 7777), timeout=float(sys.argv[2])) as connection:
            connection.sendall(socket.gethostname().encode())
        break
    except ConnectionRefusedError:
        # The other side comes up.
        if time.monotonic() > end:
            raise
        time.sleep(0.02)
"""


def host_state():
    """Return what a cluster might leave on this machine; other tests may mount and share memory."""
    mounted = [str(entry.point) for entry in mounts.entries()]
    return {
        "mounts": [point for point in mounted if point.startswith(("/dev", "/etc", "/proc", "/sys"))],
        "links": sorted(Path("/sys/class/net").iterdir()),
        "files": [name for name in ("of-node-1", "on", "shell", "hosts") if Path("/dev/shm", name).exists()],
    }


def test_a_node_has_its_own_name_memory_processes_and_network():
    before = host_state()
    with Cluster(2) as cluster:
        cluster.call(1, "touch", "/dev/shm/of-node-1")
        found = [nodes.python(cluster, node, ABOUT).finish() for node in range(2)]
        assert [code for code, _, _ in found] == [0, 0], found
        first, second = (json.loads(out) for _, out, _ in found)
        assert (first["name"], second["name"]) == cluster.names == ("node0", "node1")
        assert (first["shared_memory"], second["shared_memory"]) == ([], ["of-node-1"])
        assert first["first"] == "sleep"
        # No two nodes have a process of one number.
        assert abs(first["process"] - second["process"]) > 1000
        assert first["links"] == ["eth0", "lo"]
        # Files and the place in them are the machine's.
        assert first["directory"] == str(Path.cwd())
    assert host_state() == before


def test_nodes_reach_each_other_by_name_and_one_that_is_unplugged_does_not():
    with Cluster(3) as cluster:
        server = nodes.python(cluster, 2, SERVER)
        assert nodes.python(cluster, 0, CLIENT, "node2", 10).finish()[0] == 0
        assert server.finish() == (0, "10.77.0.2 node0\n", "")
        server = nodes.python(cluster, 2, SERVER)
        cluster.unplug(2)
        code, _, err = nodes.python(cluster, 0, CLIENT, "node2", 0.2).finish()
        assert code == 1
        assert "TimeoutError" in err or "No route to host" in err
        cluster.plug(2)
        assert nodes.python(cluster, 1, CLIENT, "node2", 10).finish()[0] == 0
        assert server.finish()[1] == "10.77.0.3 node1\n"


@emulator.needs_fuse
def test_a_node_sees_its_own_mount_and_reading_it_fills_its_own_page_cache(backing, points, tmp_path):
    server = pfs.Server.start(backing, points, spec=emulator.write_spec(tmp_path / "spec.toml"))
    read = "import sys; print(len(open(sys.argv[1], 'rb').read()))"
    with Cluster(2, [[point] for point in points]) as cluster:
        server.reset()
        for _ in range(2):
            assert nodes.python(cluster, 0, read, points[0] / "file").finish()[1] == f"{8 << 20}\n"
        first, second = server.stats()["nodes"]
        # The second reading came from the page cache, but for pages that the kernel reclaimed
        # meanwhile.
        assert 8 << 20 <= first["read_bytes"] < 12 << 20
        assert second["read_bytes"] == 0
        assert nodes.python(cluster, 1, read, points[1] / "file").finish()[1] == f"{8 << 20}\n"
        assert server.stats()["nodes"][1]["read_bytes"] == 8 << 20
        code, _, err = nodes.python(cluster, 0, read, points[1] / "file").finish()
        assert code == 1
        assert "FileNotFoundError" in err


def test_a_node_that_is_killed_takes_its_processes_along_and_the_others_live():
    with Cluster(2) as cluster:
        sleeping = nodes.python(cluster, 1, "import time; time.sleep(600)")
        cluster.kill(1)
        assert sleeping.finish()[0] != 0
        assert cluster.call(0, "hostname") == "node0\n"
        with pytest.raises(ClusterError, match="node1"):
            cluster.call(1, "hostname")


def test_clearing_ends_what_runs_on_the_nodes_and_keeps_them():
    with Cluster(2) as cluster:
        sleeps = "import time; print('up', flush=True); time.sleep(600)"
        running = [nodes.python(cluster, node, sleeps) for node in (0, 0, 1)]
        # One that is still on its way to its node is not there yet.
        while not all(one.said("up") for one in running):
            time.sleep(0.01)
        cluster.clear()
        assert all(one.finish()[0] != 0 for one in running)
        assert cluster.call(1, "hostname") == "node1\n"


STARTER = r"""
import subprocess, sys, time
from forebay_lab.cluster import Cluster
with Cluster(2) as cluster:
    for node in range(2):
        # One in a session of its own, as daemons of launchers are.
        subprocess.Popen(cluster.on(node, ["setsid", "sleep", "600"]), stdin=subprocess.DEVNULL)
        while "sleep\0" + "600" not in cluster.call(node, "sh", "-c", "cat /proc/[0-9]*/cmdline || true"):
            time.sleep(0.01)
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_starter_is_killed(number):
    before = host_state()
    starting = [sys.executable, "-c", STARTER]
    with subprocess.Popen(starting, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as starter:
        if not select.select([starter.stdout], [], [], nodes.WITHIN_S)[0]:
            starter.kill()
        assert starter.stdout.readline() == "up\n"
        processes = nodes.descendants(starter.pid)
        # The init process and what waits for it, the two nodes likewise, the programs.
        assert len(processes) >= 8
        os.kill(starter.pid, number)
    nodes.wait_until_gone(processes)
    assert host_state() == before


def test_nodes_can_be_made_without_being_root():
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    code = "from forebay_lab.cluster import Cluster\nwith Cluster(2) as cluster: print(cluster.call(1, 'hostname'))"
    if subprocess.run([*without, "unshare", "-Ur", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces are not allowed here, or setpriv is not installed")
    done = subprocess.run([*without, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "node1"), done.stderr


def test_a_cluster_that_cannot_be_made_says_why(monkeypatch, tmp_path, says):
    with says(ClusterError, 1, 200, 0):
        Cluster(0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed: unshare, nsenter" in missing()
    with pytest.raises(ClusterError, match="unshare"):
        Cluster(2)
    # A program that fails is quoted.
    for program in ("nsenter", "mount", "umount", "hostname", "ip", "unshare"):
        (tmp_path / program).write_text("#!/bin/sh\necho no namespaces today >&2\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    with pytest.raises(ClusterError, match="no namespaces today"):
        Cluster(2)
