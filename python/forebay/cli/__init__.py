"""The ``forebay`` command.

Data goes to stdout, everything else to stderr. Exit codes: 0, 1 (failed; the message is on stderr),
2 (wrong use), 130 (interrupted, as shells report SIGINT). A command lives in the module of its
name, which is imported when that command runs, and what a command needs is imported inside it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _open_streams()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["run"] and (status := _run(given[1:])) is not None:
        return status
    import click

    from forebay.cli.commands import cli

    # What a library warns of is for its caller to find; here it is for the person at the terminal.
    as_it_was, warnings.formatwarning = warnings.formatwarning, _plain
    try:
        status = cli.main(args=given, prog_name="forebay", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        _with_name_of_today(error).show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("forebay: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it; avoid a second message at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _report(error)
    finally:
        warnings.formatwarning = as_it_was
    return int(status or 0)


def _with_name_of_today(error: click.ClickException) -> click.ClickException:
    """Name the option of today where a command was given the old name of one."""
    import click

    from forebay._renamed import COMMANDS

    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    today = COMMANDS.get(error.option_name)
    if today not in {name for one in error.ctx.command.params for name in one.opts}:
        return error
    return click.UsageError(f"{error.message}\nhint: it is called {today}", error.ctx)


def _run(given: Sequence[str]) -> int | None:
    """Run a program without importing click; None if help is wanted."""
    from forebay.tools.run.command_line import HelpWanted
    from forebay.tools.run.main import main

    as_it_was, warnings.formatwarning = warnings.formatwarning, _plain
    try:
        return main(given)
    except HelpWanted:
        return None
    except KeyboardInterrupt:
        print("forebay: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        return _report(error)
    finally:
        warnings.formatwarning = as_it_was


def _open_streams() -> None:
    """Open closed standard streams (``>&-``) on ``/dev/null``; no file gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode))


def _plain(message: Warning | str, *_: object, **__: object) -> str:
    return f"forebay: warning: {message}\n"


def _report(error: Exception) -> int:
    """Print an expected error without a traceback; pass on what is a fault of ours."""
    from forebay._core import ForebayError, OptionError

    if not isinstance(error, ForebayError | OSError):
        raise error
    print(f"forebay: {error}", file=sys.stderr)
    return 2 if isinstance(error, OptionError) else 1
