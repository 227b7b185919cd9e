"""The channel of a job over TCP, for ranks that no MPI started: all ranks connect to rank 0.

1. Rank 0 listens at an address that the others can find (`forebay._job.rank0`). Each rank connects
   and proves that it belongs to the job (`forebay._job.connection`). Rank 0 holds one connection to
   each.
2. Once all ranks have joined, rank 0 notifies them and closes its port. After a minute without all
   ranks, rank 0 notifies those that joined; the leaders of the nodes warn, and the nodes are not
   linked. An unreachable rank therefore costs a minute, not the job.
3. In an exchange each rank sends its payload to rank 0, which sends all payloads to all ranks.
   Every second, rank 0 sends the waiting ranks the list of missing ones. A rank that gives up, or
   whose connection ends, ends the exchange on all ranks.

The channel has no thread: rank 0 serves the others while it waits itself. A channel lives while the
ranks make one loader.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from forebay import _native
from forebay._core import ForebayError, PeerLostError, RendezvousError
from forebay._job.channel import (
    RANK_0_MISSING,
    WARN_AFTER_S,
    Channel,
    Patience,
    Reports,
    gave_up,
    listed,
    lost,
    reason_of,
)
from forebay._job.connection import Connection, Kind, PendingPeer, connect
from forebay._job.processes import Processes
from forebay._job.rank0 import Rank0Address, find_rank0
from forebay._job.rank_info import RankInfo
from forebay._native import HandshakeKey
from forebay._warn import warn

# How long ranks wait for each other before the job goes on without a channel [s].
JOIN_WITHIN_S = 60.0
# How long a rank waits for an answer before it tries the next port [s].
_ATTEMPT_WITHIN_S = 3.0
# Pause between two rounds of attempts [s].
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.005, 0.1
# How long a connection may take to prove that it belongs to the job [s], and how many may do so at
# once beside the ranks.
_PROVE_WITHIN_S = 5.0
_MAX_PENDING = 64
# Longest wait for a socket [s]: then signals, processes and the deadline are looked at.
_SLICE_S = 0.05
# How long a rank that gives up sees to it that rank 0 can read why [s].
_SEND_WITHIN_S = 1.0
_JOINING = "joining the other ranks"
# Open files that rank 0 leaves to the script.
_SPARE_FILES = 128

# (job, rank) of those that go on without a channel; their later loaders do not try again.
_unlinked: set[tuple[str, int]] = set()


class _NoChannelError(Exception):
    """Why there is no channel."""


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def open_channel(rank_info: RankInfo, loader: str, deadline_s: float) -> Channel | None:
    """Open the channel between the nodes of a job, on which a loader is made (collective).

    Returns
    -------
    channel : Channel or None
        None where the ranks cannot find or reach each other. Where they were to, a warning says
        what is lost.

    Raises
    ------
    RendezvousError
        If a rank that had joined gives up.
    PeerLostError
        If the process of a rank that had joined ends.
    """
    if (rank_info.job, rank_info.rank) in _unlinked:
        return None
    join_by = time.monotonic() + min(JOIN_WITHIN_S, deadline_s)
    siblings = _native.Siblings(rank_info.launcher, rank_info.rank) if rank_info.launcher else None
    try:
        try:
            address = find_rank0(rank_info, loader, join_by)
        except OSError as error:
            raise _NoChannelError(str(error)) from error
        if address is None:
            return None
        key = HandshakeKey(rank_info.job, loader, address.secret)
        side = _Rank0 if rank_info.rank == 0 else _Member
        channel: Channel = side(rank_info, address, key, Processes({}, siblings), join_by, deadline_s)
        return channel
    except _NoChannelError as error:
        _unlinked.add((rank_info.job, rank_info.rank))
        if rank_info.rank == rank_info.local_ranks[0]:
            warn(
                f"the nodes of this job are not linked: {error}; deaths of ranks on other nodes are not reported here, "
                "options are not compared with theirs, and nodes take no turns at reading "
                "(FOREBAY_JOB_ADDRESS=host:port says where rank 0 listens, FOREBAY_JOB_ADDRESS=none links no nodes)"
            )
        return None


class _Rank0:
    """The channel as rank 0 has it."""

    rank = 0

    def __init__(
        self,
        rank_info: RankInfo,
        address: Rank0Address,
        key: HandshakeKey,
        processes: Processes,
        join_by: float,
        deadline_s: float,
    ) -> None:
        self.size = rank_info.size
        self._processes = processes
        self._others: dict[int, Connection] = {}
        assert address.listener is not None
        try:
            with address.listener as listener:
                self._join(listener, key, join_by)
        except BaseException as error:
            self._end(error)
            raise

    def _join(self, listener: socket.socket, key: HandshakeKey, join_by: float) -> None:
        """Accept all other ranks."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = self.size + _SPARE_FILES
        refusal = ""
        if files != resource.RLIM_INFINITY and needed > files:
            refusal = (
                f"open files of rank 0: expected a limit of at least {needed}, found {files} (ulimit -n)"
            )
        pending: list[PendingPeer] = []
        # Ranks that have proved that they belong to the job, until they have joined.
        proved: dict[int, Connection] = {}
        # Ranks that have joined and were told that there is no channel.
        refused: set[int] = set()
        wait = _JoinWait(0, join_by)
        try:
            while missing := set(range(1, self.size)) - self._others.keys() - refused:
                wait.check(listed(missing))
                ready = _wait([listener, *pending, *proved.values(), *self._others.values()])
                _accept(listener, pending, key, self.size)
                for rank, one in _admitted(pending):
                    if rank in missing and rank not in proved:
                        proved[rank] = one
                    else:
                        one.send(Kind.FAILED, f"two processes say that they are rank {rank}".encode())
                        one.close()
                for rank in self._joined(proved):
                    if refusal:
                        proved[rank].send(Kind.UNLINKED, refusal.encode())
                        proved.pop(rank).close()
                        refused.add(rank)
                    else:
                        self._others[rank] = proved.pop(rank)
                self._receive(_JOINING, ready)
                self._look(_JOINING)
        finally:
            for peer in pending:
                peer.close()
            for one in proved.values():
                one.close()
        if refusal:
            raise _NoChannelError(refusal)
        self._send_all(Kind.READY)

    @staticmethod
    def _joined(proved: dict[int, Connection]) -> list[int]:
        """Return the ranks that have joined; those that are gone are dropped."""
        joined = []
        for rank, one in list(proved.items()):
            if any(kind == Kind.JOIN for kind, _ in one.receive()):
                joined.append(rank)
            elif one.ended:
                proved.pop(rank).close()
        return joined

    def gather(self, payload: bytes, what: str, deadline_s: float) -> list[bytes]:
        """Exchange payloads; see `Channel.gather`."""
        patience = Patience(what, 0, self.size, deadline_s)
        reports = Reports(patience, self.size)
        payloads = {0: payload}
        try:
            while len(payloads) < self.size:
                ready = _wait([*self._others.values()])
                payloads |= self._receive(what, ready)
                self._look(what)
                if (missing := reports.due(payloads)) is not None:
                    for rank in payloads.keys() - {0}:
                        self._others[rank].send(Kind.MISSING, missing.encode())
                patience.check()
            gathered = [payloads[rank] for rank in range(self.size)]
            self._send_all(Kind.RESULT, zlib.compress(b"".join(gathered), 1))
            while unsent := [rank for rank, other in self._others.items() if other.sends]:
                patience.missing = listed(unsent)
                _wait([self._others[rank] for rank in unsent], reads=False)
                self._look(what)
                patience.check()
        except BaseException as error:
            self._end(error)
            raise
        return gathered

    def give_up(self, error: BaseException) -> None:
        """Notify all ranks; see `Channel.give_up`."""
        self._fail(_kind_of(error), f"rank 0 gave up: {reason_of(error)}")

    def close(self) -> None:
        """Close all connections."""
        for other in self._others.values():
            other.close()
        self._others.clear()
        self._processes.close()

    def _end(self, error: BaseException) -> None:
        """End the channel of all ranks."""
        if isinstance(error, _NoChannelError):
            self._send_all(Kind.UNLINKED, str(error).encode())
            self._flush()
            self.close()
        else:
            # Where a rank has failed all have been told so, and nothing is left to close.
            self.give_up(error)

    def _receive(self, what: str, ready: set[int]) -> dict[int, bytes]:
        """Return the payloads that have come over the connections that are ready.

        Raises
        ------
        RendezvousError
            If a rank gives up; all are told.
        PeerLostError
            If a process ends; all are told.
        """
        payloads: dict[int, bytes] = {}
        for rank, other in self._others.items():
            if other.fileno() not in ready and not other.ended:
                continue
            for kind, body in other.receive():
                if kind == Kind.PAYLOAD:
                    payloads[rank] = body
                elif kind in (Kind.FAILED, Kind.LOST):
                    text = body.decode(errors="replace")
                    self._fail(kind, text)
                    raise _failed(kind, what, text)
            if other.ended:
                text = f"rank {rank} has ended"
                self._fail(Kind.LOST, text)
                raise _failed(Kind.LOST, what, text)
        return payloads

    def _look(self, what: str) -> None:
        if who := self._processes.lost():
            self._fail(Kind.LOST, f"{who} of the node of rank 0 has ended")
            raise lost(f"{what}: {who} of this node has ended")

    def _fail(self, kind: Kind, text: str) -> None:
        self._send_all(kind, text.encode())
        self._flush()
        self.close()

    def _send_all(self, kind: Kind, payload: bytes = b"") -> None:
        for other in self._others.values():
            other.send(kind, payload)

    def _flush(self) -> None:
        end = time.monotonic() + _SEND_WITHIN_S
        while (unsent := [one for one in self._others.values() if one.sends]) and time.monotonic() < end:
            _wait(unsent, reads=False)


class _Member:
    """The channel as the other ranks have it."""

    def __init__(
        self,
        rank_info: RankInfo,
        address: Rank0Address,
        key: HandshakeKey,
        processes: Processes,
        join_by: float,
        deadline_s: float,
    ) -> None:
        self.rank, self.size, self._node = rank_info.rank, rank_info.size, rank_info.node
        self._processes = processes
        self._rank0: Connection | None = None
        try:
            self._rank0 = self._connect(address, key, join_by)
            self._rank0.send(Kind.JOIN)
            patience = Patience(_JOINING, self.rank, self.size, deadline_s)
            if self._answer(patience)[0] != Kind.READY:
                raise RendezvousError(f"{_JOINING}: rank 0 sent a frame that does not belong there")
        except _NoChannelError:
            self.close()
            raise
        except BaseException as error:
            self.give_up(error)
            raise

    def _connect(self, address: Rank0Address, key: HandshakeKey, join_by: float) -> Connection:
        wait = _JoinWait(self.rank, join_by)
        pause, problem = _FIRST_PAUSE_S, ""
        while True:
            for host in address.hosts:
                for port in address.ports:
                    within_s = min(_ATTEMPT_WITHIN_S, max(join_by - time.monotonic(), 0.1))
                    try:
                        return connect(host, port, key, self.rank, self.size, within_s)
                    except OSError as error:
                        problem = str(error)
                    if who := self._processes.lost():
                        raise lost(f"{_JOINING}: {who} of this node has ended")
                    wait.check(f"rank 0 at {address}: {problem}")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)

    def gather(self, payload: bytes, what: str, deadline_s: float) -> list[bytes]:
        """Exchange payloads; see `Channel.gather`."""
        patience = Patience(what, self.rank, self.size, deadline_s)
        try:
            if self._rank0 is None:
                raise RendezvousError(f"{what}: the connection to rank 0 is closed")
            self._rank0.send(Kind.PAYLOAD, payload)
            kind, body = self._answer(patience)
            everything = zlib.decompress(body) if kind == Kind.RESULT else b""
            if len(everything) != self.size * len(payload):
                raise RendezvousError(
                    f"{what}: expected {self.size} payloads of {len(payload)} bytes from rank 0, "
                    f"found {len(everything)} bytes"
                )
        except BaseException as error:
            self.give_up(error)
            raise
        length = len(payload)
        return [everything[length * rank : length * (rank + 1)] for rank in range(self.size)]

    def _answer(self, patience: Patience) -> tuple[Kind, bytes]:
        """Wait for what rank 0 says next."""
        rank0 = self._rank0
        assert rank0 is not None
        while True:
            _wait([rank0])
            for kind, body in rank0.receive():
                text = body.decode(errors="replace") if kind not in (Kind.RESULT, Kind.READY) else ""
                if kind == Kind.MISSING:
                    patience.missing = text
                elif kind in (Kind.FAILED, Kind.LOST):
                    self.close()
                    raise _failed(kind, patience.what, text)
                elif kind == Kind.UNLINKED:
                    raise _NoChannelError(text)
                else:
                    return kind, body
            if rank0.ended:
                self.close()
                raise _failed(Kind.LOST, patience.what, "rank 0 has ended")
            if who := self._processes.lost():
                rank0.send(Kind.LOST, f"{who} of node {self._node} has ended".encode())
                self.close()
                raise lost(f"{patience.what}: {who} of this node has ended")
            if not patience.missing and patience.waited_s > patience.report_every_s:
                patience.missing = RANK_0_MISSING
            patience.check()

    def give_up(self, error: BaseException) -> None:
        """Notify all ranks, through rank 0; see `Channel.give_up`."""
        if self._rank0 is not None:
            self._rank0.send(_kind_of(error), f"rank {self.rank} gave up: {reason_of(error)}".encode())
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._rank0 is not None:
            self._rank0.close()
            self._rank0 = None
        self._processes.close()


class _JoinWait:
    """The wait of one rank for the others to join; a warning says whom it waits for."""

    def __init__(self, rank: int, join_by: float) -> None:
        self._rank, self._join_by = rank, join_by
        self._warn_at = time.monotonic() + WARN_AFTER_S
        self._warned = False

    def check(self, missing: str) -> None:
        """Warn once, and give up where it is time to."""
        now = time.monotonic()
        if now > self._join_by:
            raise _NoChannelError(f"rank {self._rank} has waited in vain for {missing}")
        if now > self._warn_at and not self._warned:
            self._warned = True
            warn(
                f"{_JOINING}: rank {self._rank} waits for {missing}; in {self._join_by - now:.0f} s it goes on without "
                "links between the nodes"
            )


def _kind_of(error: BaseException) -> Kind:
    """Return the frame by which a rank tells why it gives up."""
    return Kind.LOST if isinstance(error, PeerLostError) else Kind.FAILED


def _failed(kind: Kind, what: str, text: str) -> ForebayError:
    """Make the error for such a frame."""
    return lost(f"{what}: {text}") if kind == Kind.LOST else gave_up(what, text)


def _accept(listener: socket.socket, pending: list[PendingPeer], key: HandshakeKey, size: int) -> None:
    """Accept connections; of too many, and of those that take too long, the oldest are dropped."""
    # Of one connection or out of descriptors: neither ends the listener (accept(2)).
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            pending.append(PendingPeer(accepted, key, size))
    now = time.monotonic()
    while pending and (len(pending) > _MAX_PENDING + size or now - pending[0].since > _PROVE_WITHIN_S):
        pending.pop(0).close()


def _admitted(pending: list[PendingPeer]) -> Iterator[tuple[int, Connection]]:
    """Yield connections that proved that they belong to the job, by rank; others may be dropped."""
    for peer in list(pending):
        try:
            rank = peer.proceed()
        except ConnectionError:
            pending.remove(peer)
            peer.close()
            continue
        if rank is not None:
            pending.remove(peer)
            yield rank, Connection(peer.socket)


def _wait(sockets: Sequence[_HasDescriptor], reads: bool = True) -> set[int]:
    """Wait briefly until a socket can be read or can send; send pending data.

    Returns the descriptors of those that are ready.
    """
    poll = select.poll()
    for one in sockets:
        sends = isinstance(one, Connection) and one.sends
        poll.register(one.fileno(), (select.POLLIN if reads else 0) | (select.POLLOUT if sends else 0))
    ready = {descriptor for descriptor, _ in poll.poll(_SLICE_S * 1000)}
    for one in sockets:
        if isinstance(one, Connection) and one.sends:
            one.flush()
    return ready
