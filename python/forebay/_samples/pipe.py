"""Messages between a loader and a worker process: where a frame is, and a memfd if it is elsewhere.

A *pipe* is a socket and an area. The loader writes a request into the area and sends where it is;
the worker writes its reply behind it. Where there is no room, the writer makes a larger area and
sends its descriptor along. One request at a time is under way in a pipe.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import NamedTuple

from forebay._samples.area import FRAMES_AT, Area, Frame, Packed

__all__ = ["Message", "Pipe"]

_MESSAGE = struct.Struct("<QQQQ?")
_FD = struct.Struct("i")


class Message(NamedTuple):
    """A frame of the area of the pipe, and what a reply has beside it."""

    frame: Frame
    spent_ns: int = 0
    """How long the worker took [ns]."""
    keeps_views: bool = False
    """Whether the function has kept arrays of the request, so that the area is the worker's own."""


class Pipe:
    """One end of a pipe."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.area: Area | None = None
        self._new: int | None = None

    def write(self, offset: int, packed: Packed) -> Frame:
        """Write a value, at ``offset`` if there is room there, or else to a new area."""
        area = self.area
        if area is None or packed.end(offset) > area.size:
            offset = FRAMES_AT
            fd = Area.make(packed.end(offset))
            self._forget_new()
            self._new = fd
            place = 0 if area is None else area.place
            self.area = area = Area(os.dup(fd))
            area.place = place
        return area.write(offset, packed)

    def send(self, message: Message) -> None:
        """Send where a value is that was written."""
        data = _MESSAGE.pack(*message.frame, message.spent_ns, message.keeps_views)
        try:
            socket.send_fds(self.socket, [data], [] if self._new is None else [self._new])
        finally:
            self._forget_new()

    def receive(self, flags: int = 0) -> Message | None:
        """Receive a message; None if the other end is closed."""
        # `socket.recv_fds` of Python 3.11 to 3.13 takes no notice of flags.
        room = socket.CMSG_SPACE(_FD.size)
        data, others, found, _ = self.socket.recvmsg(_MESSAGE.size, room, flags | socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None
        if found & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "no descriptor is left for shared memory (ulimit -n)")
        for _, _, fd in others:
            self.area = Area(*_FD.unpack(fd))
        *frame, spent_ns, keeps_views = _MESSAGE.unpack(data)
        return Message(Frame(*frame), spent_ns, keeps_views)

    def close(self) -> None:
        """Close this end."""
        self._forget_new()
        self.socket.close()
        self.area = None

    def _forget_new(self) -> None:
        fd, self._new = self._new, None
        if fd is not None:
            os.close(fd)
