"""The channel of a job: its ranks exchange a few bytes while they make a loader.

There are two: over MPI (`forebay._job.mpi`), and over TCP (`forebay._job.tcp`) where no MPI started
the ranks. Both gather payloads before a deadline, name the missing ranks, and end the exchange on
all ranks when one of them gives up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from forebay._core import PeerLostError, RendezvousError
from forebay._warn import warn

# Wait for other ranks before a warning [s].
WARN_AFTER_S = 10.0
# Interval of the reports between waiting ranks and rank 0 [s]; a shorter exchange sends none.
_REPORT_EVERY_S = 1.0
# Longest list of ranks in a message [characters].
_LISTED = 380


class Channel(Protocol):
    """A connection of all ranks of a job, over which they exchange payloads."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def gather(self, payload: bytes, what: str, deadline_s: float) -> list[bytes]:
        """Exchange payloads of one length between all ranks (collective); index the result by rank.

        Parameters
        ----------
        payload : bytes
            That of this rank.
        what : str
            What is exchanged, for messages.
        deadline_s : float
            Seconds after which a missing rank is an error.

        Raises
        ------
        RendezvousError
            If a rank is missing at the deadline, or gives up.
        PeerLostError
            If a process of the job ends, or a rank gives up because of that.
        """

    def give_up(self, error: BaseException) -> None:
        """Notify all ranks why this one misses the next exchange, which ends theirs."""

    def close(self) -> None:
        """Stop watching other ranks: the loader is made, or will not be."""


def compare(channel: Channel, facts: Mapping[str, Any], deadline_s: float) -> None:
    """Check that all ranks hold the same facts (collective).

    Ranks exchange digests, and the facts themselves only if the digests differ, so that the error
    can name the difference.

    Raises
    ------
    RendezvousError
        On every rank, naming a rank that differs, the option and both values; also as
        `Channel.gather`.
    PeerLostError
        As `Channel.gather`.
    """
    import hashlib

    what = "comparing options"
    text = json.dumps(facts, sort_keys=True).encode()
    digests = channel.gather(hashlib.blake2b(text, digest_size=32).digest(), what, deadline_s)
    if len(set(digests)) == 1:
        return
    lengths = channel.gather(len(text).to_bytes(8, "little"), what, deadline_s)
    width = max(int.from_bytes(length, "little") for length in lengths)
    texts = channel.gather(text.ljust(width), what, deadline_s)
    mine = json.loads(texts[0])
    for rank, other_text in enumerate(texts):
        other = json.loads(other_text)
        for key in sorted(mine.keys() | other.keys()):
            if mine.get(key) != other.get(key):
                raise RendezvousError(
                    f"the ranks disagree on {key}: {mine.get(key)!r} on rank 0, {other.get(key)!r} on rank {rank}\n"
                    "hint: every rank must make the loader with the same dataset and options; look at FOREBAY_* too"
                )


@contextmanager
def errors_told(channel: Channel | None) -> Iterator[None]:
    """If the block fails on this rank, tell the others, which wait in the next exchange."""
    try:
        yield
    except BaseException as error:
        if channel is not None:
            channel.give_up(error)
        raise


class Patience:
    """The wait of one exchange on this rank.

    It warns with the missing ranks, and raises at the deadline.
    """

    def __init__(self, what: str, rank: int, size: int, deadline_s: float) -> None:
        self.what, self._rank, self._size, self._deadline_s = what, rank, size, deadline_s
        self._begun = time.monotonic()
        self._warned = False
        # Where there is little time ranks report earlier, so that the error can name the missing.
        self.report_every_s = min(_REPORT_EVERY_S, deadline_s / 8)
        self.missing = ""
        """The missing ranks, in words."""

    @property
    def waited_s(self) -> float:
        """How long this rank has waited."""
        return time.monotonic() - self._begun

    def check(self) -> None:
        """Warn, once, when it has lasted long, and raise the error when it has lasted too long."""
        waited_s = self.waited_s
        if waited_s > self._deadline_s:
            raise RendezvousError(self.late())
        if not self._warned and self.missing and waited_s > WARN_AFTER_S + 2 * self.report_every_s:
            self._warned = True
            warn(
                f"{self.what}: this is rank {self._rank} of {self._size}, and has waited for {waited_s:.0f} s for "
                f"{self.missing}; after {self._deadline_s:g} s that is an error"
            )

    def late(self) -> str:
        """Return the message of the error."""
        text = (
            f"{self.what}: not all of the {self._size} ranks came within {self._deadline_s:g} s; "
            f"this is rank {self._rank}"
        )
        return f"{text}; missing: {self.missing}" if self.missing else text


class Reports:
    """What rank 0 tells the ranks that wait: which ones are missing."""

    def __init__(self, patience: Patience, size: int) -> None:
        self._patience, self._size = patience, size
        self._told: frozenset[int] = frozenset()
        self._told_at = time.monotonic()

    def due(self, here: Iterable[int]) -> str | None:
        """Return the missing ranks, in words, where it is time to tell the ranks that are here."""
        now, came = time.monotonic(), frozenset(here)
        if now - self._told_at < self._patience.report_every_s or came == self._told:
            return None
        self._told, self._told_at = came, now
        self._patience.missing = listed(set(range(self._size)) - came)
        return self._patience.missing


# What a rank that has not heard from rank 0 says is missing.
RANK_0_MISSING = "rank 0, which would know of others"


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
    if len(text) > _LISTED:
        text = f"{text[: text.rindex(',', 0, _LISTED)]} and more, {len(found)} in all"
    return f"rank{'s' if len(found) > 1 else ''} {text}" if found else ""


def reason_of(error: BaseException) -> str:
    """Return an error as one line for other ranks."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def gave_up(what: str, text: str) -> RendezvousError:
    """Make the error for a rank that gives up."""
    return RendezvousError(f"{what}: {text}\nhint: the output of that rank says more")


def lost(text: str) -> PeerLostError:
    """Make the error for a process that has ended."""
    return PeerLostError(f"{text}\nhint: the output of that rank may say why it ended")
