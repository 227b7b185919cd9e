"""Worker processes that call ``transform=``, as the process of the loader sees them.

Each worker has two pipes, and each pipe one thread of the loader at a time: while a thread takes
results out of one pipe, the worker is busy with the samples of the other. A request has several
samples, so many that their functions take a few milliseconds, as a round trip costs a fraction of
one, and threads of the loader may have to wait for the interpreter lock of the script.

Workers are new programs, not forks: nothing of the loader, its threads and its memory is in them.
They start with their first request. One that dies, for example because memory ran out, is noticed
by its pidfd: the sample that it was at gets an error, and requests that it had not begun go to a
new worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing.spawn
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from forebay._samples.area import FRAMES_AT, Packed, pack
from forebay._samples.calling import SampleFunction
from forebay._samples.pipe import Message, Pipe
from forebay._samples.portable import Start, packed_function
from forebay._samples.worker_error import WorkerError

__all__ = ["PIPES", "Processes", "chunk_samples"]

PIPES = 2
"""Requests of each worker that are under way."""

# How long the functions of a request shall take [s]: a round trip takes 0.1 to 0.2 ms, and samples
# that are under way when a loader is closed are finished first.
_CHUNK_S = 4e-3
# New workers for a request that none has begun.
_MAX_STARTS = 3
# A worker without requests ends at once; one that does not is held up by what the function left.
_END_WITHIN_S = 5.0

# sys.path comes first, as it says where to import the rest from.
_PROGRAM = """\
import os, pickle, sys
file = os.fdopen(int(sys.argv[1]), "rb")
sys.path[:] = pickle.load(file)
from forebay._samples.worker import main
main(file)
"""


def chunk_samples(seconds_per_sample: float | None, samples: int, pipes: int) -> int:
    """Return how many samples of a batch go into a request.

    Parameters
    ----------
    seconds_per_sample : float or None
        How long the function takes, if that is known [s].
    samples : int
        Samples of the batch.
    pipes : int
        Requests that are under way at a time.
    """
    if seconds_per_sample is None:
        return 1
    fitting = int(_CHUNK_S / max(seconds_per_sample, 1e-9))
    return max(1, min(fitting, -(-samples // pipes)))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What all workers of a loader have in common."""

    loader: str
    function: bytes
    main: tuple[str | None, str | None] | None
    way: str
    seed: int
    makes_arrays: bool


class _Life:
    """A worker process, from its start to its end."""

    def __init__(self, facts: _Facts) -> None:
        self.pipes: list[Pipe] = []
        self.is_over = False
        others: list[socket.socket] = []
        try:
            self._start(facts, others)
        except OSError as error:
            self.close_pipes()
            raise WorkerError(
                f"loader {facts.loader!r}: a worker process cannot be started: {error}\n"
                "hint: ulimit -u, ulimit -n and pids.max limit processes and descriptors; or ask for fewer by workers="
            ) from error
        finally:
            for other in others:
                other.close()

    def _start(self, facts: _Facts, others: list[socket.socket]) -> None:
        """Start the process; ``others`` takes its ends of the pipes."""
        for _ in range(PIPES):
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.pipes.append(Pipe(own))
            others.append(other)
        start = Start(
            parent=os.getpid(),
            sockets=tuple(other.fileno() for other in others),
            arguments=list(sys.argv),
            main=facts.main,
            function=facts.function,
            way=facts.way,
            seed=facts.seed,
            makes_arrays=facts.makes_arrays,
        )
        file = os.memfd_create("forebay-start", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(file), "wb") as stream:
                pickle.dump([part or str(Path.cwd()) for part in sys.path], stream)
                pickle.dump(start, stream)
            os.lseek(file, 0, os.SEEK_SET)
            self.process = subprocess.Popen(
                [_executable(), *_interpreter_flags(), "-c", _PROGRAM, str(file)],
                stdin=subprocess.DEVNULL,
                pass_fds=(file, *start.sockets),
                # There are several workers, so one thread for numpy in each; the user may choose.
                env={"OMP_NUM_THREADS": "1", **os.environ},
                # Ctrl-C in a terminal goes to the loader's process alone.
                process_group=0,
            )
            self._pidfd = os.pidfd_open(self.process.pid)
        finally:
            os.close(file)

    def exchange(self, number: int, packed: Packed) -> tuple[Any, int] | None:
        """Send a request; return its reply and its time [ns], or None if the worker dies."""
        pipe = self.pipes[number]
        try:
            frame = pipe.write(FRAMES_AT, packed)
            assert pipe.area is not None
            pipe.area.place = 0
            pipe.send(Message(frame))
            message = self._reply(pipe)
        except (BrokenPipeError, ConnectionResetError):
            message = None
        if message is None:
            self.is_over = True
            return None
        area = pipe.area
        assert area is not None
        found = area.read(message.frame)
        if message.keeps_views:
            pipe.area = None
        return found, message.spent_ns

    def _reply(self, pipe: Pipe) -> Message | None:
        poll = select.poll()
        poll.register(pipe.socket, select.POLLIN)
        # Another process may hold the other end of the socket: one that the function has forked.
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()
        try:
            return pipe.receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def place(self, number: int) -> int:
        """Return how far a dead worker was with a request: 0, or a sample counted from 1."""
        area = self.pipes[number].area
        return 0 if area is None else area.place

    def end(self) -> None:
        """Let the worker end, which has no request; wait for that."""
        self.is_over = True
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.socket.shutdown(socket.SHUT_WR)
        self.wait(_END_WITHIN_S)
        self.close_pipes()

    def wait(self, seconds: float) -> int:
        """Wait for the end of the process, and end it if that takes longer; return its status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close_pipes(self) -> None:
        """Close the pipes; no thread uses them any more."""
        for pipe in self.pipes:
            pipe.close()

    def __del__(self) -> None:
        self.close_pipes()
        if (fd := getattr(self, "_pidfd", None)) is not None:
            os.close(fd)


class _Worker:
    """A worker process, or in its place the one that comes after it."""

    def __init__(self, facts: _Facts) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._life: _Life | None = None

    def life(self) -> _Life:
        """Return the process; a new one if it has died."""
        with self._lock:
            if self._life is not None and self._life.is_over:
                self._life.wait(_END_WITHIN_S)
                self._life = None
            if self._life is None:
                self._life = _Life(self._facts)
            return self._life

    def end(self) -> None:
        with self._lock:
            life, self._life = self._life, None
        if life is not None:
            life.end()


class Processes:
    """The worker processes of a loader.

    Parameters
    ----------
    sample : function
        What they call.
    way : str
        How (:func:`~forebay._samples.calling.parameters`).
    loader : str
        Name of the loader, for errors.
    seed : int
        Its seed.
    makes_arrays : bool
        Whether arrays and numbers are all that becomes of results, so that tensors come as arrays.

    Raises
    ------
    OptionError
        If the function cannot be sent to another process.
    """

    def __init__(
        self, sample: SampleFunction, way: str, *, loader: str, seed: int, makes_arrays: bool
    ) -> None:
        function, main = packed_function(sample)
        self._facts = _Facts(loader, function, main, way, seed, makes_arrays)
        self.number = 0
        """How many there are."""
        self._workers: list[_Worker] = []
        self._free: SimpleQueue[tuple[_Worker, int]] = SimpleQueue()
        self._seconds_per_sample: float | None = None
        self._ending = threading.Lock()
        self._owner = os.getpid()

    def set_number(self, number: int) -> None:
        """Set how many there are, while none has work."""
        if number == self.number:
            return
        self.end()
        self.number = number
        self._workers = [_Worker(self._facts) for _ in range(number)]
        self._free = SimpleQueue()
        for at in range(PIPES):
            for worker in self._workers:
                self._free.put((worker, at))

    @property
    def threads(self) -> int:
        """How many threads of the loader hand samples over."""
        return PIPES * self.number

    def chunk_samples(self, samples: int) -> int:
        """Return how many samples of a batch the next request shall have."""
        return chunk_samples(self._seconds_per_sample, samples, self.threads)

    def call(
        self, epoch: int, numbers: Sequence[int], fields: Mapping[str, Any]
    ) -> tuple[list[Any], BaseException | None]:
        """Call the function for samples.

        Parameters
        ----------
        epoch : int
            Epoch, for random numbers.
        numbers : sequence of int
            Ids of the samples.
        fields : mapping
            Field name → an array or a list with a value for each sample.

        Returns
        -------
        tuple
            The results up to the first sample for which it failed, and that failure, if any.

        Raises
        ------
        WorkerError
            If no worker can be started.
        """
        packed = pack((epoch, list(numbers), dict(fields)))
        worker, at = self._free.get()
        try:
            for _ in range(_MAX_STARTS):
                life = worker.life()
                try:
                    found = life.exchange(at, packed)
                except OSError as error:
                    life.is_over = True
                    life.process.kill()
                    raise WorkerError(
                        f"loader {self._facts.loader!r}: samples cannot be sent to worker process {life.process.pid}: {error}"
                    ) from error
                except BaseException:
                    # The script's own thread was interrupted; the reply would be taken for another.
                    life.is_over = True
                    life.process.kill()
                    raise
                if found is not None:
                    return self._noted(life, found)
                if place := life.place(at):
                    # The results of samples before it are lost; no batch will need them.
                    return [None] * (place - 1), self._died(
                        life, f"while it worked on sample {numbers[place - 1]}"
                    )
            raise self._died(life, f"before it called transform=, {_MAX_STARTS} times in a row")
        finally:
            self._free.put((worker, at))

    def _noted(self, life: _Life, found: tuple[Any, int]) -> tuple[list[Any], BaseException | None]:
        """Take note of how long a request took; raise if the worker could not load the function."""
        (results, failure), spent_ns = found
        if results is None:
            raise WorkerError(
                f"loader {self._facts.loader!r}: worker process {life.process.pid} cannot load transform=: "
                f"{type(failure).__name__}: {failure}"
            ) from failure
        if results:
            seconds = spent_ns / 1e9 / len(results)
            before = self._seconds_per_sample
            self._seconds_per_sample = seconds if before is None else 0.75 * before + 0.25 * seconds
        return results, failure

    def _died(self, life: _Life, when: str) -> WorkerError:
        status = life.wait(_END_WITHIN_S)
        hint = "hint: its standard error has what it wrote last"
        if status >= 0:
            how = f"ended with status {status}"
        else:
            how = f"was ended by {_signal_name(-status)}"
            if -status == signal.SIGKILL:
                hint = "hint: the kernel kills processes where memory runs out; see dmesg, or memory.events of the group"
        return WorkerError(
            f"loader {self._facts.loader!r}: worker process {life.process.pid} {how} {when}\n{hint}"
        )

    def end(self) -> None:
        """End the workers, after the requests under way; later requests start others."""
        if self._owner != os.getpid():
            # A forked child, whose parent has them.
            return
        with self._ending:
            taken = [self._free.get() for _ in range(self.threads)]
            for worker in self._workers:
                worker.end()
            for one in taken:
                self._free.put(one)

    def run(self) -> None:
        """End the workers; as the last job of a crew."""
        self.end()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _executable() -> str:
    """Return the interpreter for other processes; programs that embed Python may set it."""
    found = multiprocessing.spawn.get_executable()
    return os.fsdecode(found) if found else sys.executable


def _interpreter_flags() -> list[str]:
    """Return the options of this interpreter, such as -O and -W."""
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    return flags
