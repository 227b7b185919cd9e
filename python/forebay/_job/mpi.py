"""The channel of a job over MPI: the few MPI calls of Forebay, for jobs on several nodes.

None of them blocks: a request is tested until it is complete or a deadline has passed
(`forebay._job.mpi_wait`), so that a rank that is gone becomes an error instead of a hang, and one
that cannot go on tells the others why. mpi4py is imported here only, and only by a process that
needs it: importing it initialises MPI.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from forebay import _native
from forebay._core import fork_generation, option_error
from forebay._job.channel import WARN_AFTER_S
from forebay._job.mpi_wait import Notes, Wait, give_up, reported
from forebay._job.processes import Processes

INIT_TIMEOUT_VARIABLE = "FOREBAY_MPI_INIT_TIMEOUT"
# Thirty years, which clocks can still add [s].
_MAX_SECONDS = 1e9

INSTALL_HINT = (
    "install an MPI with `pip install 'forebay[mpi]'` and start the script with the mpiexec beside this Python, "
    "`mpiexec -n 4 python -m mpi4py train.py`, or use your site's launcher"
)


def imported() -> Any | None:
    """Return the module mpi4py.MPI if this process has imported it and MPI runs."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi


def _init_timeout_s() -> float | None:
    text = os.environ.get(INIT_TIMEOUT_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise option_error(f"{INIT_TIMEOUT_VARIABLE}: expected seconds above 0, found {text!r}")
    return seconds


def load(why: str, deadline_s: float, rank: tuple[str, int] | None = None) -> Any:
    """Import mpi4py.MPI, which initialises MPI.

    ``MPI_Init`` waits for all ranks and cannot be cancelled. If they do not come, standard error
    reports it after ten seconds (half of ``deadline_s`` where that is shorter), then ever more
    rarely. It is up to the launcher to end the job, unless ``FOREBAY_MPI_INIT_TIMEOUT`` says after
    how many seconds this process ends, with exit code 1.

    Parameters
    ----------
    why : str
        Begins messages.
    deadline_s : float
        How long ranks may keep each other waiting elsewhere.
    rank : tuple of str and int, optional
        Variable in which the launcher gave this process its rank, and the rank: then ranks of this
        node that have ended are named.

    Raises
    ------
    OptionError
        If it is not installed or finds no MPI; the message begins with ``why``.
    """
    watchdog = _native.Watchdog(
        f"forebay: {why}: MPI_Init",
        min(WARN_AFTER_S, deadline_s / 2),
        end_after_s=_init_timeout_s(),
        rank=rank,
    )
    try:
        with watchdog:
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise option_error(f"{why}: mpi4py cannot be imported: {error}", INSTALL_HINT) from error
    if not MPI.Is_initialized():
        raise option_error(f"{why}: MPI is not initialised", "call MPI.Init() before making a loader")
    return MPI


_channel_key: int | None = None


class MpiChannel:
    """The duplicate of a communicator on which Forebay talks.

    Messages on the user's own communicator cannot mix with it. MPI frees it with that communicator.
    When an exchange fails, all ranks give the duplicate up, and the next loader makes another one.
    """

    def __init__(self, comm: Any, duplicate: Any) -> None:
        self._comm = comm
        self._duplicate = duplicate
        self._notes = Notes(duplicate)
        self._exchanges = 0
        self._processes: Processes | None = None
        self.rank: int = duplicate.rank
        self.size: int = duplicate.size

    @staticmethod
    def of(comm: Any, deadline_s: float, siblings: _native.Siblings | None = None) -> MpiChannel:
        """Return the channel of a communicator, made at the first call (then collective).

        ``siblings`` are ranks of the communicator that are watched until their processes are known
        (`watch`).

        Raises
        ------
        OptionError
            In a forked child of the process that made it.
        RendezvousError
            If not all ranks take part within ``deadline_s`` seconds.
        """
        global _channel_key
        if _channel_key is None:
            _channel_key = comm.Create_keyval(delete_fn=_free)
        generation, channel = comm.Get_attr(_channel_key) or (fork_generation(), None)
        if generation != fork_generation():
            raise option_error(
                f"process {os.getpid()} was forked from one that uses MPI, and cannot use its communicators",
                "start processes with spawn, or make the loader in the parent",
            )
        if channel is None:
            what = "duplicating the communicator"
            try:
                duplicate, request = comm.Idup()
            except Exception as error:
                raise reported(comm, what, error) from error
            Wait(Notes(comm), 0, what, deadline_s, Processes({}, siblings)).until(request, (duplicate,))
            channel = MpiChannel(comm, duplicate)
            comm.Set_attr(_channel_key, (generation, channel))
        assert isinstance(channel, MpiChannel)
        channel.watch({}, siblings)
        return channel

    def watch(self, pids: Mapping[int, tuple[int, int]], siblings: _native.Siblings | None = None) -> None:
        """Watch processes of this node until `close`: rank → process id and start.

        An exchange ends when one of them does.
        """
        self.close()
        self._processes = Processes(pids, siblings)

    def close(self) -> None:
        """Stop watching processes; see `Channel.close`. The duplicate serves the next loader."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def gather(self, payload: bytes, what: str, deadline_s: float) -> list[bytes]:
        """Exchange payloads; see `Channel.gather`. MPI may also report a rank as failed."""
        received = bytearray(len(payload) * self.size)
        self._exchanges += 1
        wait = Wait(self._notes, self._exchanges, what, deadline_s, self._processes)
        try:
            try:
                request = self._duplicate.Iallgather(payload, received)
            except Exception as error:
                raise reported(self._duplicate, what, error) from error
            wait.until(request, (payload, received))
        except BaseException:
            self._abandon()
            raise
        length = len(payload)
        return [bytes(received[length * rank : length * (rank + 1)]) for rank in range(self.size)]

    def give_up(self, error: BaseException) -> None:
        """Notify all ranks; see `Channel.give_up`."""
        give_up(self._notes, self._exchanges + 1, error)
        self._abandon()

    def _abandon(self) -> None:
        # Requests may be under way on it, so that it cannot be freed.
        self.close()
        self._comm, comm = None, self._comm
        if comm is not None:
            comm.Set_attr(_channel_key, (fork_generation(), None))


def _free(comm: Any, _key: int, kept: tuple[int, MpiChannel | None]) -> None:
    # Those of MPI itself end with MPI, which frees what is left.
    mpi = sys.modules.get("mpi4py.MPI")
    channel = kept[1]
    if (
        channel is not None
        and channel._comm is not None
        and mpi is not None
        and comm not in (mpi.COMM_WORLD, mpi.COMM_SELF)
    ):
        channel._duplicate.Free()
