"""Spawned processes that play the ranks of a node, one call after the other.

Starting Python costs more than most tests, so a pool keeps its processes. A call names a function
of :mod:`support.ranks.work`; every rank runs it in a world of its own with a job of its own. A
rank that was killed is started again at the next need.
"""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import support

# A watchdog against hangs [s], never a measurement.
DEADLINE_S = support.DEADLINE_S
# How long a process may take to end by itself [s] before it is killed.
ENDS_WITHIN_S = 10
# What ranks say of others that are slow, after seconds.
SLOWNESS = r".*\b(has waited for \d+ s for|waits for) (local )?ranks? "

_jobs = itertools.count()


@dataclass(frozen=True)
class Raised:
    """An exception of a rank."""

    kind: str
    message: str
    trace: str


@dataclass(frozen=True)
class Killed:
    """A rank that ended in the middle of a call."""

    exitcode: int | None


@dataclass(frozen=True)
class _Result:
    value: Any


class Rank:
    """One process; calls go in, results come out."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        # A call is under way: a test that failed in the middle of it left this process in an
        # unknown state.
        self.busy = False

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def begin(
        self,
        function: Callable[..., Any],
        world: Mapping[str, Any],
        arguments: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a call; by default in the environment of this process."""
        self.busy = True
        self._pipe.send((function, dict(world), dict(environment or os.environ), dict(arguments)))

    def tell(self, value: object) -> None:
        """Send something to a call that asks for it with ``hear``."""
        self._pipe.send(value)

    def hear(self, deadline_s: float = DEADLINE_S) -> Any:
        """Wait for the next thing that the call says, or for its result."""
        try:
            if not self._pipe.poll(deadline_s):
                self.process.kill()
                raise AssertionError(f"process {self.pid} hung; its stacks are on stderr")
            found = self._pipe.recv()
            if isinstance(found, _Result):
                self.busy = False
                found = found.value
            return found
        except (EOFError, ConnectionResetError):
            self.process.join(DEADLINE_S)
            return Killed(self.process.exitcode)

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        os.kill(self.pid, signal_number)

    def is_alive(self) -> bool:
        """Whether it can take another call."""
        return self.process.is_alive()

    def end(self) -> None:
        """End it: by itself if it can, so that it writes what measures coverage."""
        self._pipe.close()
        if not self.busy:
            self.process.join(ENDS_WITHIN_S)
        self.process.kill()
        self.process.join()


class Pool:
    """Ranks that are kept from call to call."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []

    def ranks(self, size: int) -> list[Rank]:
        """Return the first ``size`` processes, started again where one died."""
        while len(self._ranks) < size:
            self._ranks.append(Rank())
        for number, rank in enumerate(self._ranks[:size]):
            if rank.busy or not rank.is_alive():
                rank.end()
                self._ranks[number] = Rank()
        return self._ranks[:size]

    def begin(
        self,
        size: int,
        function: Callable[..., Any],
        each: Callable[[int], Mapping[str, Any]] = lambda rank: {},
        *,
        job: str | None = None,
        absent: Sequence[int] = (),
        nodes: Sequence[int] | None = None,
        over: str = "mpi",
        environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
        **arguments: Any,
    ) -> list[Rank]:
        """Start a call on ranks of a new job; ``absent`` ranks do not come.

        ``each(rank)`` returns the arguments that differ by rank.

        ``nodes`` says which node each rank is on; without it they are all on one, and know of no
        communicator. Those of several nodes talk ``over`` a stand-in for MPI, or ``"tcp"``.

        ``environment(rank)`` returns variables that the rank has besides those of this process.
        """
        ranks = self.ranks(size)
        job = job or f"test-{os.getpid()}-{next(_jobs)}"
        for number, rank in enumerate(ranks):
            if number not in absent:
                world: dict[str, Any] = {"rank": number, "size": size, "job": job}
                variables = {**os.environ, **environment(number)}
                if nodes is not None and over == "tcp":
                    local = [rank for rank, node in enumerate(nodes) if node == nodes[number]]
                    world |= {"node": nodes[number], "local_ranks": local}
                    world |= {"local_rank": local.index(number), "local_size": len(local)}
                    variables["FOREBAY_JOB_ADDRESS"] = "127.0.0.1"
                elif nodes is not None:
                    exchange = os.path.join(os.getcwd(), "exchange", job)  # noqa: PTH109, PTH118
                    world |= {"node": nodes[number], "exchange": exchange}
                rank.begin(function, world, {**arguments, **each(number)}, variables)
        return ranks

    def outcomes(self, ranks: Sequence[Rank], deadline_s: float = DEADLINE_S) -> list[Any]:
        """Wait for results: :class:`Raised` where a rank raised, :class:`Killed` where it died."""
        found = []
        for rank in ranks:
            try:
                found.append(rank.hear(deadline_s))
            except AssertionError:
                for other in ranks:
                    other.process.kill()
                raise
        return found

    def run(
        self,
        size: int,
        function: Callable[..., Any],
        each: Callable[[int], Mapping[str, Any]] = lambda rank: {},
        **arguments: Any,
    ) -> list[Any]:
        """Call a function on ranks and return their results; an exception fails the test."""
        found = self.outcomes(self.begin(size, function, each, **arguments))
        for number, one in enumerate(found):
            assert not isinstance(one, Raised), f"rank {number}:\n{one.trace}"
            assert not isinstance(one, Killed), f"rank {number} ended with {one.exitcode}"
        return found

    def end(self) -> None:
        """End all."""
        for rank in self._ranks:
            rank.end()


def _serve(pipe: Any) -> None:
    faulthandler.enable()
    warnings.simplefilter("error")
    # A busy machine makes ranks late; tests of late ranks record these warnings.
    warnings.filterwarnings("ignore", message=SLOWNESS, category=RuntimeWarning)
    while True:
        try:
            function, world, environment, arguments = pipe.recv()
        except EOFError:
            return
        os.environ.clear()
        os.environ.update(environment)
        # Before the other side's watchdog bites, say where we are.
        faulthandler.dump_traceback_later(DEADLINE_S - 5, file=sys.__stderr__)
        try:
            result = function(world=world, pipe=pipe, **arguments)
        except BaseException as error:
            trace = traceback.format_exc()
            result = Raised(type(error).__name__, str(error), trace)
            # The loader lives in the traceback's frames; a rank that is done with a call keeps
            # nothing of it.
            error.__traceback__ = None
            del error
        faulthandler.cancel_dump_traceback_later()
        pipe.send(_Result(result))
        del result
