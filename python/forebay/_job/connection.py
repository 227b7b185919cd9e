"""A TCP connection between rank 0 and another rank: mutual proof of the job, then frames.

::

    rank → rank 0: magic (16) | rank (4) | size (4) | nonce (32)
    rank 0 → rank: nonce (32)
    rank → rank 0: proof (32)
    rank 0 → rank: proof (32)
    then, both ways: kind (1) | length (4) | payload

Numbers are little-endian. A proof is of what the ranks that make a loader have in common: names of
job and loader, and a secret (``handshake.rs`` in forebay-transport). Rank 0 sends a pending peer 32
random bytes and nothing else. Frames are neither encrypted nor signed.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from enum import IntEnum

from forebay._native import HandshakeKey

_MAGIC = b"FOREBAY JOB 2\n\0\0"
_HELLO = struct.Struct("<16sII32s")
HELLO_BYTES = _HELLO.size
NONCE_BYTES = 32
PROOF_BYTES = 32
_HEADER = struct.Struct("<BI")
_RECEIVED_AT_ONCE = 1 << 18


class Kind(IntEnum):
    """What a frame holds."""

    JOIN = 1
    """The rank takes part; from here on it waits for rank 0."""
    READY = 2
    """All ranks take part."""
    UNLINKED = 3
    """The job has no channel; a text says why."""
    PAYLOAD = 4
    """What a rank contributes to an exchange."""
    RESULT = 5
    """What all ranks have contributed."""
    MISSING = 6
    """The ranks that have not contributed, in words."""
    FAILED = 7
    """A rank cannot go on; a text says which one and why. It ends the exchange on all ranks."""
    LOST = 8
    """A process has ended; a text says which one. It ends the exchange on all ranks."""


class Connection:
    """A connection whose both sides have proved that they belong to the job; no call blocks."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._in, self._out = bytearray(), bytearray()
        self.ended = False

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def sends(self) -> bool:
        """Whether something waits for room to be sent."""
        return bool(self._out) and not self.ended

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame, or as much of it as there is room for; `flush` sends the rest."""
        self._out += _HEADER.pack(kind, len(payload)) + payload
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        try:
            while self._out:
                sent = self._socket.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def receive(self) -> Iterator[tuple[Kind, bytes]]:
        """Yield the frames that have come; `ended` says whether there will be no more."""
        try:
            while received := self._socket.recv(_RECEIVED_AT_ONCE):
                self._in += received
            self.ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        while len(self._in) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._in)
            end = _HEADER.size + length
            if len(self._in) < end:
                return
            payload = bytes(self._in[_HEADER.size : end])
            del self._in[:end]
            if kind not in Kind.__members__.values():
                self.ended = True
                return
            yield Kind(kind), payload

    def close(self) -> None:
        """Close it; what was sent still arrives."""
        # Unread data would make the kernel reset the connection, and drop what the other side has
        # not read.
        for _ in self.receive():
            pass
        self._socket.close()


class PendingPeer:
    """A connection that rank 0 has accepted, until it proves that it belongs to the job."""

    def __init__(self, accepted: socket.socket, key: HandshakeKey, size: int) -> None:
        accepted.setblocking(False)
        self.socket = accepted
        self.since = time.monotonic()
        self._key, self._size = key, size
        self._nonce = os.urandom(NONCE_BYTES)
        self._hello, self._rank = b"", 0
        self._expected, self._in = HELLO_BYTES, b""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.socket.fileno()

    def close(self) -> None:
        """Drop it."""
        self.socket.close()

    def proceed(self) -> int | None:
        """Receive what has arrived; return the rank once it is proved.

        Raises
        ------
        ConnectionError
            If it does not belong to the job, or is gone.
        """
        while len(self._in) < self._expected:
            try:
                received = self.socket.recv(self._expected - len(self._in))
            except BlockingIOError:
                return None
            except OSError as error:
                raise ConnectionError from error
            if not received:
                raise ConnectionError
            self._in += received
            if len(self._in) == HELLO_BYTES and not self._hello:
                self._hello, self._in, self._expected = self._in, b"", PROOF_BYTES
                magic, self._rank, size, _ = _HELLO.unpack(self._hello)
                if magic != _MAGIC or size != self._size or not 0 < self._rank < size:
                    raise ConnectionError
                self._send(self._nonce)
        if not self._key.is_proved(self._in, self._hello, self._nonce, accepting=False):
            raise ConnectionError
        self._send(self._key.proof(self._hello, self._nonce, accepting=True))
        return self._rank

    def _send(self, message: bytes) -> None:
        # A fresh socket takes a few bytes at once.
        try:
            if self.socket.send(message) != len(message):
                raise ConnectionError
        except OSError as error:
            raise ConnectionError from error


def connect(host: str, port: int, key: HandshakeKey, rank: int, size: int, within_s: float) -> Connection:
    """Connect to rank 0.

    Raises
    ------
    OSError
        If what listens there, if anything, is not rank 0 of this job, or does not answer within
        ``within_s`` seconds.
    """
    connected = socket.create_connection((host, port), timeout=within_s)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = _HELLO.pack(_MAGIC, rank, size, os.urandom(NONCE_BYTES))
        connected.sendall(hello)
        nonce = _exactly(connected, NONCE_BYTES)
        connected.sendall(key.proof(hello, nonce, accepting=False))
        if not key.is_proved(_exactly(connected, PROOF_BYTES), hello, nonce, accepting=True):
            raise ConnectionError("it is not rank 0 of this job")
        return Connection(connected)
    except BaseException:
        connected.close()
        raise


def _exactly(connected: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        more = connected.recv(count - len(received))
        if not more:
            raise ConnectionError("it is not rank 0 of this job")
        received += more
    return received
