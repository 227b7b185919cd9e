"""The few MPI calls that Forebay makes, when a job stretches over several nodes.

None of them blocks: a request is tested, with short sleeps, until it is complete or a deadline has passed, so that a rank that
is gone becomes an error instead of a hang. mpi4py is imported here only, and only by a process that needs it: importing it
initialises MPI.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from forebay._core import PeerLostError, fork_generation, option_error

INSTALL_HINT = (
    "install an MPI with `pip install 'forebay[mpi]'` and start the script with the mpiexec beside this Python, "
    "`mpiexec -n 4 python -m mpi4py train.py`, or use your site's launcher"
)

# Pause between two tests of a request [s]: short at first, since most answers are there at once, and never so long that
# it shows beside the milliseconds that a rank needs to wake up on a busy node.
_FIRST_PAUSE_S = 50e-6
_LONGEST_PAUSE_S = 1e-3

# Requests that were given up; MPI may still write into their buffers.
_abandoned: list[object] = []


def imported() -> Any | None:
    """Return the mpi4py.MPI module if this process has imported it and MPI runs, without importing it."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi


def load(why: str) -> Any:
    """Import mpi4py.MPI, which initialises MPI.

    Raises
    ------
    OptionError
        If it is not installed or finds no MPI; the message begins with ``why``.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise option_error(f"{why}: mpi4py cannot be imported: {error}", INSTALL_HINT) from error
    if not MPI.Is_initialized():
        raise option_error(f"{why}: MPI is not initialised", "call MPI.Init() before making a loader")
    return MPI


_duplicate_key: int | None = None


def private(comm: Any, deadline_s: float) -> Any:
    """Return the duplicate of ``comm`` on which Forebay talks, made at the first call (then collective).

    What the user does on his own communicator at the same time cannot mix with it. It is kept with the communicator and goes
    when that is freed.

    Raises
    ------
    OptionError
        In a forked child of the process that made the duplicate.
    PeerLostError
        If not all ranks take part within ``deadline_s`` seconds.
    """
    global _duplicate_key
    if _duplicate_key is None:
        _duplicate_key = comm.Create_keyval(delete_fn=_free_duplicate)
    generation, duplicate = comm.Get_attr(_duplicate_key) or (fork_generation(), None)
    if generation != fork_generation():
        raise option_error(
            f"process {os.getpid()} was forked from one that uses MPI, and cannot use its communicators",
            "start processes with spawn, or make the loader in the parent",
        )
    if duplicate is None:
        what = "duplicating the communicator"
        try:
            duplicate, request = comm.Idup()
        except Exception as error:
            raise PeerLostError(f"{what}: MPI reports: {error}") from error
        _wait(request, comm, what, deadline_s, (duplicate,))
        comm.Set_attr(_duplicate_key, (generation, duplicate))
    return duplicate


def _free_duplicate(comm: Any, _key: int, kept: tuple[int, Any]) -> None:
    # Those of MPI itself end with MPI, which frees what is left.
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and comm not in (mpi.COMM_WORLD, mpi.COMM_SELF):
        kept[1].Free()


def gather(comm: Any, payload: bytes, what: str, deadline_s: float) -> list[bytes]:
    """Exchange equally long payloads between all ranks of ``comm``; the result is indexed by rank.

    Raises
    ------
    PeerLostError
        If not all ranks have answered after ``deadline_s`` seconds, or MPI reports one as failed.
    """
    received = bytearray(len(payload) * comm.size)
    try:
        request = comm.Iallgather(payload, received)
    except Exception as error:
        raise PeerLostError(f"{what}: MPI reports: {error}") from error
    _wait(request, comm, what, deadline_s, (payload, received))
    length = len(payload)
    return [bytes(received[length * rank : length * (rank + 1)]) for rank in range(comm.size)]


def _wait(request: Any, comm: Any, what: str, deadline_s: float, needed: tuple[object, ...]) -> None:
    """Wait for a request; what it needs is kept where it is given up."""
    end, pause = time.monotonic() + deadline_s, _FIRST_PAUSE_S
    try:
        while not request.Test():
            if time.monotonic() > end:
                _abandoned.append((request, needed))
                raise PeerLostError(
                    f"{what}: not all of the {comm.size} ranks came within {deadline_s:g} s; this is rank {comm.rank}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
    except PeerLostError:
        raise
    except KeyboardInterrupt:
        _abandoned.append((request, needed))
        raise
    except Exception as error:
        raise PeerLostError(f"{what}: MPI reports: {error}") from error


def compare(comm: Any, facts: Mapping[str, Any], deadline_s: float) -> None:
    """Check that all ranks of ``comm`` hold the same facts (collective).

    Digests are exchanged first; only if they differ, the facts themselves, so that the error can name the difference.

    Raises
    ------
    OptionError
        On every rank, naming a rank that differs, the option and both values.
    """
    text = json.dumps(facts, sort_keys=True).encode()
    digests = gather(comm, hashlib.blake2b(text, digest_size=32).digest(), "comparing options", deadline_s)
    if len(set(digests)) == 1:
        return
    lengths = gather(comm, len(text).to_bytes(8, "little"), "comparing options", deadline_s)
    width = max(int.from_bytes(length, "little") for length in lengths)
    texts = gather(comm, text.ljust(width), "comparing options", deadline_s)
    mine = json.loads(texts[0])
    for rank, other_text in enumerate(texts):
        other = json.loads(other_text)
        for key in sorted(mine.keys() | other.keys()):
            if mine.get(key) != other.get(key):
                raise option_error(
                    f"the ranks disagree on {key}: {mine.get(key)!r} on rank 0, {other.get(key)!r} on rank {rank}",
                    "every rank must make the loader with the same data set and options; look at FOREBAY_* too",
                )
