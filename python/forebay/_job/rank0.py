"""The address where rank 0 listens for the other ranks of a job.

Ranks use the first of these sources that applies:

1. ``FOREBAY_JOB_ADDRESS=host:port``; without a port, the ports of 3. ``none``: there is no channel.
2. A store of torch: of an initialised `torch.distributed`, or torchrun's where torch is imported.
   Rank 0 listens on a port that the system chooses, and publishes its addresses and a secret in the
   store.
3. The host that the launcher names (``MASTER_ADDR``, the first node of a SLURM step), at ports that
   follow from the names of job and loader. Rank 0 takes the first free port; the others try all.
   Only the name of the job then proves that a rank belongs to it.
"""

from __future__ import annotations

import collections
import datetime
import hashlib
import ipaddress
import json
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

from forebay import _native
from forebay._core import option_error
from forebay._job.rank_info import RankInfo

ADDRESS_VARIABLE = "FOREBAY_JOB_ADDRESS"
INTERFACE_VARIABLE = "FOREBAY_INTERFACE"

# Ports from which those of a job are taken: below the ephemeral ones of Linux (32768), above what
# services register.
_FIRST_PORT, _PORTS = 20_480, 8_192
# How many of them a loader may use: some may be taken.
_CANDIDATES = 4
# Pause between two looks into a store [s].
_LOOK_EVERY_S = 0.02
_BACKLOG = 1024
_SECRET_BYTES = 32

# (job, loader) → how many channels this process has opened for it: tells what rank 0 publishes for
# them apart.
_opened: collections.Counter[tuple[str, str]] = collections.Counter()


@dataclass(frozen=True, slots=True)
class Rank0Address:
    """Where the ranks connect to rank 0, and the secret that came with it."""

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    secret: bytes
    listener: socket.socket | None
    """The socket of rank 0; None on the others."""

    def __str__(self) -> str:
        ports = ", ".join(map(str, self.ports))
        return f"{' or '.join(self.hosts)}, port {ports}" if self.hosts else f"port {ports}"


def find_rank0(rank_info: RankInfo, loader: str, join_by: float) -> Rank0Address | None:
    """Find out where rank 0 listens; None if nothing says where. On rank 0 it listens from here on.

    Raises
    ------
    OptionError
        If ``FOREBAY_JOB_ADDRESS`` makes no sense.
    OSError
        If rank 0 cannot listen, or has not published where it does at ``join_by`` (of
        `time.monotonic`).
    """
    stated = os.environ.get(ADDRESS_VARIABLE)
    address = stated or rank_info.address
    if address is None or address == "none":
        return None
    if not stated and (store := _torch_store(rank_info)) is not None:
        return _published(store, rank_info, loader, join_by)
    if rank_info.job.startswith("parent-"):
        raise option_error(
            f"{ADDRESS_VARIABLE}={stated}: the job has no name that all its nodes know",
            "set FOREBAY_JOB, or World(job=), to the same text on all ranks",
        )
    host, ports = split_address(address)
    ports = ports or derived_ports(rank_info.job, loader)
    listener = _listen(ports) if rank_info.rank == 0 else None
    return Rank0Address((host,), ports, b"", listener)


def split_address(address: str) -> tuple[str, tuple[int, ...]]:
    """Split ``host``, ``host:port`` or ``[host]:port``; no port is an empty tuple."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        port = rest.removeprefix(":")
    elif address.count(":") > 1:
        host, port = address, ""
    else:
        host, _, port = address.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)):
        raise option_error(f"{ADDRESS_VARIABLE}: expected host, host:port or none; found {address!r}")
    return host, (int(port),) if port else ()


def derived_ports(job: str, loader: str) -> tuple[int, ...]:
    """Return the ports that the names of a job and a loader stand for."""
    digest = hashlib.blake2b(f"{len(job)} {job} {loader}".encode(), digest_size=2 * _CANDIDATES).digest()
    offsets = (number % _PORTS for number in struct.unpack(f"<{_CANDIDATES}H", digest))
    return tuple(dict.fromkeys(_FIRST_PORT + offset for offset in offsets))


def _listen(ports: tuple[int, ...]) -> socket.socket:
    problem: OSError | None = None
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    for port in ports:
        try:
            listener = socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
            listener.setblocking(False)
            return listener
        except OSError as error:
            problem = error
    raise OSError(f"rank 0 cannot listen on port {', '.join(map(str, ports))}: {problem}")


# --- a store of torch
# -------------------------------------------------------------------------------------------------


def _torch_store(rank_info: RankInfo) -> Any | None:
    """Return a store of torch that all ranks of the job have; torch is not imported for it."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available():
        return None
    if distributed.is_initialized():
        if (distributed.get_rank(), distributed.get_world_size()) != (rank_info.rank, rank_info.size):
            return None
        return distributed.distributed_c10d._get_default_store()
    if (
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    ):
        return None
    timeout = datetime.timedelta(seconds=30)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        return distributed.TCPStore(host, port, None, False, timeout, False)
    except Exception as error:
        raise OSError(f"torchrun's store at {host}:{port} cannot be reached: {error}") from error


def _number_of(name: tuple[str, str]) -> int:
    _opened[name] += 1
    return _opened[name] - 1


def _published(store: Any, rank_info: RankInfo, loader: str, join_by: float) -> Rank0Address:
    """Publish where rank 0 listens, or wait until it has."""
    name = rank_info.job, loader
    number = _number_of(name)
    key = f"forebay/{hashlib.blake2b(repr(name).encode(), digest_size=16).hexdigest()}/{number}"
    machine, hosts = _machine_and_addresses()
    try:
        if rank_info.rank == 0:
            listener = _listen((0,))
            port, secret = listener.getsockname()[1], os.urandom(_SECRET_BYTES)
            here = {"machine": machine, "hosts": hosts, "port": port, "secret": secret.hex()}
            store.set(key, json.dumps(here))
            return Rank0Address(tuple(hosts), (port,), secret, listener)
        while not store.check([key]):
            if time.monotonic() > join_by:
                raise OSError("rank 0 has not published where it listens")
            time.sleep(_LOOK_EVERY_S)
        found = json.loads(store.get(key))
    except RuntimeError as error:
        raise OSError(f"the store of torch: {error}") from error
    if found["machine"] == machine:
        found["hosts"] = ["127.0.0.1"]
    return Rank0Address(tuple(found["hosts"]), (found["port"],), bytes.fromhex(found["secret"]), None)


def _machine_and_addresses() -> tuple[str, list[str]]:
    """Return what tells machines (and network namespaces) apart, and the addresses of this one."""
    listener = _native.Listener(os.environ.get(INTERFACE_VARIABLE) or None)
    listener.close()
    machine, _, _, count = struct.unpack_from("<16sHBB", listener.endpoint)
    found = [
        ipaddress.IPv6Address(listener.endpoint[start : start + 16])
        for start in range(20, 20 + 16 * count, 16)
    ]
    return machine.hex(), [str(one.ipv4_mapped or one) for one in found]
