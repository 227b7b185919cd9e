"""The options of ``forebay run``, each defined once, and how they are read.

Options end at ``--``; what follows is the command. ``getopt`` reads them, as it takes no time to
import. The help page is click's (``cli/run.py``).
"""

from __future__ import annotations

import getopt
from collections.abc import Sequence
from typing import Any, NamedTuple

from forebay._core import option_error

__all__ = ["OPTIONS", "Arguments", "Flag", "HelpWanted", "parse"]


class HelpWanted(Exception):  # noqa: N818 - no error
    """The command line asks for help."""


class Flag(NamedTuple):
    """An option of the command line."""

    name: str
    """With its dashes."""
    field: str
    """Of :class:`Arguments`."""
    help: str
    metavar: str | None = None
    """None for an option without a value."""
    is_repeated: bool = False
    choices: tuple[str, ...] = ()


OPTIONS = (
    Flag(
        "--tier",
        "tiers",
        "Directory of this node that keeps copies; repeat for several, the nearest first.  "
        "[default: FOREBAY_TIERS, then the configuration files]",
        "DIR:SIZE",
        is_repeated=True,
    ),
    Flag(
        "--source",
        "sources",
        "Directory of the data, or a file; repeat for several.",
        "DIR",
        is_repeated=True,
    ),
    Flag("--stage", "stage", "Copy the sources first, then start the program."),
    Flag(
        "--frozen",
        "frozen",
        "Declare that the sources do not change: opens of files with a copy do not reach them.",
    ),
    Flag(
        "--fetch",
        "fetch",
        "whole: read a file as a whole when the program first opens it. none: copy nothing but what "
        "the program reads.  [default: also up to 5 % of the files that it opens]",
        "whole|none",
        choices=("whole", "none"),
    ),
    Flag("--no-keep", "no_keep", "Delete the copies that this run makes when it ends."),
    Flag("--check", "check", "Compare each copy that is served with its source; exit with 1 if one differs."),
    Flag("--json", "json", "Write the summary to FILE; keys as in docs/metrics.md.", "FILE"),
    Flag("--config", "config", "Configuration file, in place of FOREBAY_CONFIG.", "FILE.toml"),
)


class Arguments(NamedTuple):
    """A command line."""

    tiers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    stage: bool = False
    frozen: bool = False
    fetch: str | None = None
    no_keep: bool = False
    check: bool = False
    json: str | None = None
    config: str | None = None
    command: tuple[str, ...] = ()


def parse(given: Sequence[str]) -> Arguments:
    """Read a command line.

    Raises
    ------
    OptionError
        If an option is unknown, or there is no command.
    HelpWanted
        If ``-h`` or ``--help`` is among the options.
    """
    end = given.index("--") if "--" in given else len(given)
    by_name = {flag.name: flag for flag in OPTIONS}
    names = [flag.name.removeprefix("--") + ("=" if flag.metavar else "") for flag in OPTIONS]
    try:
        found, rest = getopt.getopt(given[:end], "h", [*names, "help"])
    except getopt.GetoptError as error:
        raise option_error(str(error), "forebay run --help lists the options") from None
    values: dict[str, Any] = {}
    for name, value in found:
        if name in ("-h", "--help"):
            raise HelpWanted
        flag = by_name[name]
        if flag.choices and value not in flag.choices:
            raise option_error(f"{name}: expected one of {', '.join(flag.choices)}; found {value!r}")
        if flag.is_repeated:
            values[flag.field] = (*values.get(flag.field, ()), value)
        else:
            values[flag.field] = value if flag.metavar else True
    if rest:
        raise option_error(
            f"expected -- before the command, found {rest[0]!r}",
            f"write: forebay run [OPTIONS] -- {' '.join(rest)}",
        )
    command = tuple(given[end + 1 :])
    if not command:
        raise option_error(
            "there is no command",
            "write for example: forebay run --tier /scratch/me:200GiB --source DATA -- python train.py",
        )
    return Arguments(**values, command=command)
