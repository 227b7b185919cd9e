"""Waiting for the ranks of a communicator without a blocking MPI call, and finding out who is missing.

A request is tested, with short sleeps, until it is complete. Meanwhile the waiting rank listens to *notes*: small messages with
a tag of their own. A rank that cannot go on sends one to all, so that all can say why; whoever sees a process of its own node
end does the same for it. Everything else is for the case that somebody does not come, and costs nothing before:

1. a rank that has waited for ten seconds tells rank 0;
2. rank 0, told so or out of patience itself, asks everybody; those who wait answer, and those who come later, when they come;
3. a second later it tells those who is missing, again whenever that changes, and all warn.

A slow rank is not dead: until the deadline that is a warning. Where rank 0 is missing itself the others can name nobody else.
"""

from __future__ import annotations

import contextlib
import struct
import time
import warnings
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

from forebay._core import ForebayError, PeerLostError
from forebay._job.processes import Processes

# How long ranks may keep the others waiting before these look who is missing [s].
WARN_AFTER_S = 10.0
# How long rank 0 collects answers before it tells who is missing [s]: those who wait answer within milliseconds.
_COLLECT_S = 1.0
# How long one who gives up sees to it that his note is on its way [s].
_TELL_WITHIN_S = 1.0
# How long a rank goes on when a process of its node has ended [s]: one that has answered before is missed by nobody.
_GRACE_S = 1.0
# How often the processes of the node are looked at [s].
_LOOK_EVERY_S = 0.02

# Pause between two tests of a request [s]: short at first, since most answers are there at once, and never so long that
# it shows beside the milliseconds that a rank needs to wake up on a busy node.
_FIRST_PAUSE_S = 50e-6
_LONGEST_PAUSE_S = 1e-3

# Of notes; every MPI grants tags up to 32767. Far from what people count up to.
_TAG = 31_847
_TEXT_BYTES = 480
# What it is, who says it, in which wait of the communicator; a text.
_NOTE = struct.Struct(f"<Bxxxii{_TEXT_BYTES}s")

# Requests that were given up; MPI may still use their buffers.
_abandoned: list[object] = []


class _Kind(IntEnum):
    WAITING = 1
    ASK = 2
    HERE = 3
    MISSING = 4
    GAVE_UP = 5
    LOST = 6


def listed(ranks: Iterable[int]) -> str:
    """Name ranks in words: ``"rank 3"``, ``"ranks 3, 5-7"``."""
    found = sorted(ranks)
    runs: list[list[int]] = []
    for rank in found:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    most = _TEXT_BYTES - 100
    if len(text) > most:
        text = f"{text[: text.rindex(',', 0, most)]} and more, {len(found)} in all"
    return f"rank{'s' if len(found) > 1 else ''} {text}" if found else ""


class Wait:
    """One wait for all ranks of a communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The communicator. Notes go over it.
    number : int
        Which wait of the communicator it is, the same on all ranks.
    what : str
        What is waited for, for messages.
    deadline_s : float
        After so many seconds it is an error.
    processes : Processes, optional
        Ranks of this node to watch.
    """

    def __init__(
        self, comm: Any, number: int, what: str, deadline_s: float, processes: Processes | None = None
    ) -> None:
        self._comm, self._number, self._what = comm, number, what
        self._deadline_s = deadline_s
        self._processes = processes
        self._begun = self._looked = time.monotonic()
        self._gone_since: float | None = None
        # Messages under way: those that are sent, and the one that comes.
        self._sent: list[tuple[Any, bytes]] = []
        self._coming: tuple[Any, bytearray] | None = None
        # Where there is little time the roll is called earlier, so that the error can name somebody.
        self._patience_s = min(WARN_AFTER_S, deadline_s / 2)
        self._collect_s = min(_COLLECT_S, deadline_s / 8)
        self._impatient = self._warned = False
        # Of rank 0, once it has asked: when, who answered, who was told.
        self._asked: float | None = None
        self._here = {comm.rank}
        self._told: set[int] = set()
        # Who is missing, in words.
        self._missing = ""

    def until(self, request: Any, needed: Sequence[object]) -> None:
        """Wait for a request of all ranks; what it needs is kept where it is given up.

        Raises
        ------
        PeerLostError
            If not all ranks come before the deadline, one of this node ends, one says that it cannot go on, or MPI reports a
            failure.
        """
        pause = _FIRST_PAUSE_S
        try:
            while not self._is_complete(request):
                now = time.monotonic()
                self._listen(now)
                self._look(now)
                self._call_the_roll(now)
                if now - self._begun > self._deadline_s:
                    raise PeerLostError(self._late())
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        except BaseException:
            _abandoned.append((request, needed))
            raise
        finally:
            _abandoned.extend(self._sent)
            if self._coming is not None:
                _abandoned.append(self._coming)

    def _is_complete(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except Exception as error:
            raise reported(self._comm, self._what, error) from error

    def tell_all(self, reason: str) -> None:
        """Tell all ranks that this one gives up, and see to it for a moment that they can hear it."""
        self._note_all(_Kind.GAVE_UP, reason)

    def _note_all(self, kind: _Kind, text: str) -> None:
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                self._note(rank, kind, text)
        end = time.monotonic() + _TELL_WITHIN_S
        with contextlib.suppress(Exception):
            # Whoever tests moves what is to be sent.
            while not all(request.Test() for request, _ in self._sent) and time.monotonic() < end:
                time.sleep(_LONGEST_PAUSE_S)
        _abandoned.extend(self._sent)
        self._sent = []

    def _note(self, to: int, kind: _Kind, text: str = "") -> None:
        # A text that is too long is cut, at a letter.
        encoded = text.encode()[:_TEXT_BYTES].decode(errors="ignore").encode()
        note = _NOTE.pack(kind, self._comm.rank, self._number, encoded)
        # Who has failed cannot be told anything.
        with contextlib.suppress(Exception):
            self._sent.append((self._comm.Isend(note, dest=to, tag=_TAG), note))

    def _listen(self, now: float) -> None:
        """Take all notes that have come."""
        while True:
            try:
                if self._coming is None and (message := self._comm.Improbe(tag=_TAG)) is not None:
                    note = bytearray(_NOTE.size)
                    self._coming = (message.Irecv(note), note)
                if self._coming is None or not self._coming[0].Test():
                    return
            except Exception as error:
                raise reported(self._comm, self._what, error) from error
            kind, source, number, text = _NOTE.unpack(self._coming[1])
            self._coming = None
            self._take(now, kind, source, number, text.rstrip(b"\0").decode(errors="replace"))

    def _take(self, now: float, kind: int, source: int, number: int, text: str) -> None:
        if kind == _Kind.GAVE_UP:
            raise PeerLostError(
                f"{self._what}: rank {source} gave up: {text}\nhint: the output of that rank says more"
            )
        if kind == _Kind.LOST:
            raise lost(f"rank {source} says: {text}")
        if number != self._number:
            return
        if kind == _Kind.WAITING:
            self._ask(now)
        elif kind == _Kind.ASK:
            self._note(source, _Kind.HERE)
        elif kind == _Kind.HERE:
            self._here.add(source)
        elif kind == _Kind.MISSING:
            self._missing = text

    def _look(self, now: float) -> None:
        """Look whether a process of this node has ended."""
        if self._processes is None or now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        gone = self._processes.gone()
        if not gone:
            return
        if self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since > _GRACE_S:
            who = ", ".join(f"rank {rank} (process {pid})" for rank, pid in sorted(gone.items()))
            told = f"{self._what}: {who} of this node has ended"
            self._note_all(_Kind.LOST, told)
            raise lost(told)

    # --- who is missing ---

    def _call_the_roll(self, now: float) -> None:
        waited_s = now - self._begun
        if not self._impatient and waited_s > self._patience_s:
            self._impatient = True
            if self._comm.rank == 0:
                self._ask(now)
            else:
                # Until it answers, it is the one.
                self._missing = "rank 0, which would know of others"
                self._note(0, _Kind.WAITING)
        if self._asked is not None and now - self._asked > self._collect_s and self._here != self._told:
            self._told = set(self._here)
            self._missing = listed(set(range(self._comm.size)) - self._here)
            for rank in sorted(self._here - {0}):
                self._note(rank, _Kind.MISSING, self._missing)
        if not self._warned and self._missing and waited_s > WARN_AFTER_S + 2 * self._collect_s:
            self._warned = True
            warnings.warn(
                f"{self._what}: this is rank {self._comm.rank} of {self._comm.size}, and has waited for {waited_s:.0f} s for "
                f"{self._missing}; after {self._deadline_s:g} s that is an error",
                RuntimeWarning,
                stacklevel=2,
            )

    def _ask(self, now: float) -> None:
        if self._comm.rank == 0 and self._asked is None:
            self._asked = now
            for rank in range(1, self._comm.size):
                self._note(rank, _Kind.ASK)

    def _late(self) -> str:
        text = (
            f"{self._what}: not all of the {self._comm.size} ranks came within {self._deadline_s:g} s; "
            f"this is rank {self._comm.rank}"
        )
        return f"{text}; missing: {self._missing}" if self._missing else text


def lost(text: str) -> PeerLostError:
    """Make the error for a process that has ended."""
    return PeerLostError(f"{text}\nhint: the output of that rank may say why it ended")


def reported(comm: Any, what: str, error: Exception) -> ForebayError:
    """Make the error for what MPI reports; an MPI that survives failures (ULFM) knows who failed."""
    if comm.size == 1:
        # Nobody can be lost.
        return ForebayError(f"{what}: MPI reports: {error}")
    failed: list[int] = []
    try:
        group = comm.Get_failed()
        failed = [rank for rank in group.Translate_ranks(None, comm.Get_group()) if rank >= 0]
    except Exception:
        # Not every MPI can say; the error itself is told either way.
        failed = []
    who = f"{listed(failed)} failed: " if failed else ""
    return PeerLostError(f"{what}: {who}MPI reports: {error}")
