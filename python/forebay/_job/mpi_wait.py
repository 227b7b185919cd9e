"""Waiting for the ranks of a communicator without a blocking MPI call.

A request is tested, with short sleeps, until it is complete. A rank that waits also reads *notes*:
small messages with a tag of their own. There are three:

- failed: a rank cannot go on, or a process of its node has ended. It sends this to all, and they
  raise it.
- here: a rank that has waited for a second reports to rank 0.
- missing: rank 0 tells the ranks that have reported which ones have not, again whenever that
  changes.

A slow rank is not dead: until the deadline it is a warning. If rank 0 itself is missing, the others
cannot name any other rank.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from forebay._core import ForebayError, PeerLostError
from forebay._job.channel import RANK_0_MISSING, Patience, Reports, gave_up, listed, lost, reason_of
from forebay._job.processes import Processes

# How long a rank that fails sees to it that its notes are on their way [s].
_SEND_WITHIN_S = 1.0

# Pause between two tests of a request [s]: short at first, since most answers are there at once,
# and never so long that it shows beside the milliseconds that a rank needs to wake up on a busy
# node.
_FIRST_PAUSE_S = 50e-6
_MAX_PAUSE_S = 1e-3

# Of notes; every MPI grants tags up to 32767. Far from what people count up to.
_TAG = 31_847
_TEXT_BYTES = 480
# Kind, sender, number of the exchange, text.
_NOTE = struct.Struct(f"<Bxxxii{_TEXT_BYTES}s")

# Requests that were given up; MPI may still use their buffers.
_abandoned: list[object] = []


class _Kind(IntEnum):
    HERE = 1
    MISSING = 2
    GAVE_UP = 3
    LOST = 4


class Notes:
    """The notes of one communicator."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        # Messages under way: those that are sent, and the one that comes.
        self._sent: list[tuple[Any, bytes]] = []
        self._coming: tuple[Any, bytearray] | None = None
        # Exchange → ranks that have reported.
        self.here: dict[int, set[int]] = {}

    def send(self, to: int, kind: _Kind, number: int, text: str = "") -> None:
        """Send a note to a rank."""
        # A text that is too long is cut, at a letter.
        encoded = text.encode()[:_TEXT_BYTES].decode(errors="ignore").encode()
        note = _NOTE.pack(kind, self.comm.rank, number, encoded)
        # MPI may refuse to send to a rank that it knows to have failed.
        with contextlib.suppress(Exception):
            self._sent.append((self.comm.Isend(note, dest=to, tag=_TAG), note))

    def fail_all(self, kind: _Kind, number: int, text: str) -> None:
        """Send a note to all other ranks, and wait a moment until they can read it."""
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self.send(rank, kind, number, text)
        end = time.monotonic() + _SEND_WITHIN_S
        with contextlib.suppress(Exception):
            # Testing makes MPI send.
            while not all(request.Test() for request, _ in self._sent) and time.monotonic() < end:
                time.sleep(_MAX_PAUSE_S)
        self.abandon()

    def read(self, what: str) -> list[tuple[int, int, str]]:
        """Return the notes that have come, but those of ranks that report: kind, exchange, text.

        Raises
        ------
        RendezvousError
            If one says that a rank gives up.
        PeerLostError
            If one says that a process has ended, or MPI reports a failure.
        """
        found: list[tuple[int, int, str]] = []
        while True:
            try:
                if self._coming is None and (message := self.comm.Improbe(tag=_TAG)) is not None:
                    note = bytearray(_NOTE.size)
                    self._coming = (message.Irecv(note), note)
                if self._coming is None or not self._coming[0].Test():
                    return found
            except Exception as error:
                raise reported(self.comm, what, error) from error
            kind, source, number, text = _NOTE.unpack(self._coming[1])
            self._coming = None
            text = text.rstrip(b"\0").decode(errors="replace")
            if kind == _Kind.GAVE_UP:
                raise gave_up(what, f"rank {source} gave up: {text}")
            if kind == _Kind.LOST:
                raise lost(f"rank {source} says: {text}")
            if kind == _Kind.HERE:
                self.here.setdefault(number, set()).add(source)
            else:
                found.append((kind, number, text))

    def abandon(self) -> None:
        """Keep what MPI may still use."""
        _abandoned.extend(self._sent)
        self._sent = []
        if self._coming is not None:
            _abandoned.append(self._coming)


class Wait:
    """One wait for all ranks of a communicator.

    Parameters
    ----------
    notes : Notes
        Of the communicator.
    number : int
        Which exchange of the communicator it is, the same on all ranks.
    what : str
        What is waited for, for messages.
    deadline_s : float
        After so many seconds it is an error.
    processes : Processes, optional
        Ranks of this node to watch.
    """

    def __init__(
        self, notes: Notes, number: int, what: str, deadline_s: float, processes: Processes | None = None
    ) -> None:
        self._notes, self._comm, self._number, self._what = notes, notes.comm, number, what
        self._processes = processes
        self._patience = Patience(what, self._comm.rank, self._comm.size, deadline_s)
        self._reports = Reports(self._patience, self._comm.size)
        self._reported = False

    def until(self, request: Any, needed: Sequence[object]) -> None:
        """Wait for a request of all ranks; what it needs is kept where it is given up.

        Raises
        ------
        RendezvousError
            If not all ranks come before the deadline, or one reports that it cannot go on.
        PeerLostError
            If a process ends, or MPI reports a failure.
        """
        pause = _FIRST_PAUSE_S
        try:
            while not self._is_complete(request):
                for _, number, text in self._notes.read(self._what):
                    if number == self._number:
                        self._patience.missing = text
                self._look()
                self._identify_missing()
                self._patience.check()
                time.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)
        except BaseException:
            _abandoned.append((request, needed))
            self._notes.abandon()
            raise
        finally:
            self._notes.here.pop(self._number, None)

    def _is_complete(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except Exception as error:
            raise reported(self._comm, self._what, error) from error

    def _look(self) -> None:
        """Raise the loss of a process of this node, and tell all."""
        if self._processes is not None and (who := self._processes.lost()):
            text = f"{self._what}: {who} of this node has ended"
            self._notes.fail_all(_Kind.LOST, self._number, text)
            raise lost(text)

    def _identify_missing(self) -> None:
        if self._comm.rank == 0:
            here = self._notes.here.get(self._number, set())
            if (missing := self._reports.due(here | {0})) is not None:
                for rank in here:
                    self._notes.send(rank, _Kind.MISSING, self._number, missing)
        elif not self._reported and self._patience.waited_s > self._patience.report_every_s:
            self._reported = True
            self._patience.missing = RANK_0_MISSING
            self._notes.send(0, _Kind.HERE, self._number)


def give_up(notes: Notes, number: int, error: BaseException) -> None:
    """Send all ranks that this one does not take part in an exchange."""
    kind = _Kind.LOST if isinstance(error, PeerLostError) else _Kind.GAVE_UP
    notes.fail_all(kind, number, reason_of(error))


def reported(comm: Any, what: str, error: Exception) -> ForebayError:
    """Make the error for a failure that MPI reports; with ULFM it names the failed rank."""
    if comm.size == 1:
        # There is no other rank to lose.
        return ForebayError(f"{what}: MPI reports: {error}")
    failed: list[int] = []
    try:
        group = comm.Get_failed()
        failed = [rank for rank in group.Translate_ranks(None, comm.Get_group()) if rank >= 0]
    except Exception:
        # Not every MPI can say; the error itself is raised either way.
        failed = []
    who = f"{listed(failed)} failed: " if failed else ""
    return PeerLostError(f"{what}: {who}MPI reports: {error}")
