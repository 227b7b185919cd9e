"""Several nodes without MPI: a communicator over files, as much of one as Forebay uses.

With it nothing ends the job when a rank dies, as a launcher would, so the survivors can be asked
what they were told.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any


class FileComm:
    """A communicator whose ranks leave what they say in a directory."""

    _keys = itertools.count()

    def __init__(self, place: str, rank: int, size: int, prefix: str = "") -> None:
        self.rank, self.size = rank, size
        self._place = place
        self._prefix = prefix
        self._calls = itertools.count()
        self._notes = itertools.count()
        self._attributes: dict[int, Any] = {}

    @classmethod
    def Create_keyval(cls, delete_fn: Any = None) -> int:  # noqa: N802
        return next(cls._keys)

    def Get_attr(self, key: int) -> Any:  # noqa: N802
        return self._attributes.get(key)

    def Set_attr(self, key: int, value: Any) -> None:  # noqa: N802
        self._attributes[key] = value

    def Idup(self) -> tuple[FileComm, Any]:  # noqa: N802
        name = f"{self._prefix}{next(self._calls)}-"
        duplicate = FileComm(self._place, self.rank, self.size, name)
        return duplicate, duplicate.Iallgather(b"", bytearray())

    def Iallgather(self, payload: bytes, received: bytearray) -> Any:  # noqa: N802
        return _Request(Path(self._place), f"{self._prefix}{next(self._calls)}", self, payload, received)

    def Isend(self, payload: bytes, dest: int, tag: int) -> Any:  # noqa: N802
        inbox = self._inbox(dest)
        inbox.mkdir(exist_ok=True)
        draft = Path(self._place) / f"draft.{self._prefix}{self.rank}.{next(self._notes)}"
        draft.write_bytes(payload)
        # Ordered by time, as messages of one rank must be.
        draft.rename(inbox / f"{time.monotonic_ns():020}.{self.rank}")
        return _Complete()

    def Improbe(self, tag: int) -> Any:  # noqa: N802
        try:
            first = min(self._inbox(self.rank).iterdir(), default=None)
        except FileNotFoundError:
            return None
        return None if first is None else _Message(first)

    def _inbox(self, rank: int) -> Path:
        return Path(self._place) / f"{self._prefix}notes.{rank}"


class _Complete:
    def Test(self) -> bool:  # noqa: N802
        return True


class _Message:
    def __init__(self, path: Path) -> None:
        self._path = path

    def Irecv(self, received: bytearray) -> _Complete:  # noqa: N802
        received[:] = self._path.read_bytes()
        self._path.unlink()
        return _Complete()


class _Request:
    def __init__(self, place: Path, name: str, comm: FileComm, payload: bytes, received: bytearray) -> None:
        self._parts = [place / f"{name}.{rank}" for rank in range(comm.size)]
        self._received = received
        whole = self._parts[comm.rank]
        draft = whole.with_suffix(f".{comm.rank}.draft")
        draft.write_bytes(payload)
        draft.rename(whole)

    def Test(self) -> bool:  # noqa: N802
        if not all(part.exists() for part in self._parts):
            return False
        self._received[:] = b"".join(part.read_bytes() for part in self._parts)
        return True


def with_comm(world: dict[str, Any]) -> dict[str, Any]:
    """Put a communicator in the place of the directory that a test gave."""
    place = world.pop("exchange", None)
    if place is not None:
        os.makedirs(place, exist_ok=True)  # noqa: PTH103
        world["comm"] = FileComm(place, world["rank"], world["size"])
    return world
