"""``forebay run`` from the command line to the exit status."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forebay import _native
from forebay._core import ForebayError, OptionError, option_error
from forebay.tools.run import child, summary
from forebay.tools.run.command_line import Arguments, parse
from forebay.tools.run.program import NotFoundError, find, loading_problem, outlook
from forebay.tools.run.served import (
    LIBRARY,
    environment_of_program,
    environment_of_user,
    is_inside_run,
    open_session,
    settings,
)
from forebay.tools.run.staging import prepare

__all__ = ["main", "run"]

# How long copies under way may take when the program has ended [s].
_FINISH_WITHIN_S = 5.0

# The rank among those of the node, by launcher: Open MPI, MPICH and Intel MPI, Slurm, torchrun.
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK")


def main(given: Sequence[str]) -> int:
    """Run a command line, without the words ``forebay run``; return the exit status.

    Raises
    ------
    OptionError
        If it is wrong.
    HelpWanted
        If it asks for help.
    """
    return run(parse(given))


def run(arguments: Arguments) -> int:
    """Run a program, and end as it ends.

    Raises
    ------
    OptionError
        If the program was not started because an option is wrong.
    """
    environment = environment_of_user()
    json_file = _json_file(arguments)
    try:
        path = find(arguments.command[0], environment)
        if is_inside_run(arguments, environment):
            child.become(path, arguments.command, environment)
        return child.end_as(_Run(arguments, environment, path, json_file).wait_status())
    except NotFoundError as error:
        print(f"forebay run: {error}", file=sys.stderr)
        return error.status


class _Run:
    """One program, and what is known of it."""

    def __init__(
        self, arguments: Arguments, environment: dict[str, str], path: str, json_file: Path | None
    ) -> None:
        self._arguments = arguments
        self._environment = environment
        self._path = path
        self._json_file = json_file
        self._settings = settings(arguments, environment)
        self._notes: list[str] = []
        self._restarts = 0
        self._begun = time.monotonic()

    def wait_status(self) -> int:
        """Run the program; return its wait status, or one that says how this process failed."""
        seen = outlook(self._path, self._arguments.command, self._environment)
        for note in seen.notes:
            self._note(note)
        if seen.refusal is not None:
            print(f"forebay run: {seen.refusal}", file=sys.stderr)
            return _exited(1)
        session: _native.RunSession | None = None
        try:
            # Threads of the session inherit the mask, so that signals wait for this thread.
            with child.hold_signals() as mask:
                try:
                    session = self._open()
                    ended_by = self._prepare(session) if session else None
                except KeyboardInterrupt:
                    ended_by = signal.SIGINT
                if ended_by is not None:
                    self._write(int(ended_by), self._summary(session, finishes=False))
                    return int(ended_by)
                environment = self._environment_of_program(session, seen.can_preload)
                with child.terminal_signals_left_to_program():
                    pid = child.start(self._path, self._arguments.command, environment, mask)
                    status = child.wait(pid)
            return self._report(session, status)
        finally:
            if session is not None:
                session.close()

    def _note(self, text: str) -> None:
        self._notes.append(text)
        print(f"forebay run: {text}", file=sys.stderr)

    def _open(self) -> _native.RunSession | None:
        """Open a run; None if that fails through no fault of the user."""
        try:
            session = open_session(self._settings)
        except ForebayError as error:
            if isinstance(error, OptionError) and not self._settings.is_of_system:
                raise
            self._note(f"the program reads the source: {error}")
            return None
        for warning in session.warnings:
            self._note(warning)
        return session

    def _prepare(self, session: _native.RunSession) -> int | None:
        """Make and compare copies as asked; return the signal that ended it early."""
        stages, checks = self._arguments.stage, self._arguments.check
        try:
            return prepare(session, stages=stages, checks=checks)
        except ForebayError as error:
            self._note(f"staging: not all files are copied: {error}")
            return None

    def _environment_of_program(
        self, session: _native.RunSession | None, can_preload: bool
    ) -> dict[str, str]:
        if session is None or not can_preload:
            return self._environment
        if (problem := loading_problem(LIBRARY)) is not None:
            self._note(f"the program reads the source: {problem}")
            return self._environment
        return environment_of_program(self._environment, session.table)

    def _report(self, session: _native.RunSession | None, status: int) -> int:
        """Finish copies and say what came from the tiers; return the wait status to end with."""
        found = self._summary(session, finishes=True)
        self._write(status, found)
        if found is None:
            if self._arguments.check:
                print("forebay run: check failed: copies were not compared", file=sys.stderr)
                return status or _exited(1)
            return status
        if _is_first_of_node(self._environment):
            for line in summary.lines(found, self._restarts):
                print(f"forebay run: {line}", file=sys.stderr)
        if not found["differences"]:
            return status
        for line in summary.differences(found):
            print(f"forebay run: check failed: {line}", file=sys.stderr)
        return status or _exited(1)

    def _summary(self, session: _native.RunSession | None, *, finishes: bool) -> Mapping[str, Any] | None:
        """Return what the run has done, if wanted after the copies under way; None if unknown."""
        if session is None:
            return None
        with suppress(KeyboardInterrupt):
            try:
                if finishes:
                    session.finish(_FINISH_WITHIN_S)
                found = session.summary()
                self._restarts = session.restarts
                return found
            except ForebayError as error:
                self._note(f"the summary is not known: {error}")
        return None

    def _write(self, status: int, found: Mapping[str, Any] | None) -> None:
        path = self._json_file
        if path is None:
            return
        facts = {
            "command": list(self._arguments.command),
            "exit_status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "seconds": time.monotonic() - self._begun,
            "notes": self._notes,
            "daemon_restarts": self._restarts,
            "run": found,
        }
        text = json.dumps(facts) + "\n"
        try:
            if path.is_symlink() or (path.exists() and not path.is_file()):
                # A link, a pipe or a device.
                path.write_text(text)
                return
            # Several ranks may write the same file.
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            draft.write_text(text)
            draft.replace(path)
        except OSError as error:
            self._note(f"--json {path}: cannot be written: {error.strerror}")


def _exited(status: int) -> int:
    """Return the wait status of a process with an exit status (wait(2))."""
    return status << 8


def _is_first_of_node(environment: Mapping[str, str]) -> bool:
    """Whether this is the first process that a launcher started on its node."""
    return all(environment.get(name, "0") == "0" for name in _LOCAL_RANKS)


def _json_file(arguments: Arguments) -> Path | None:
    if arguments.json is None:
        return None
    path = Path(arguments.json).absolute()
    if path.is_dir() or not path.parent.is_dir():
        found = "a directory" if path.is_dir() else f"no directory {path.parent}"
        raise option_error(
            f"--json {arguments.json}: expected a file in an existing directory, found {found}"
        )
    return path
