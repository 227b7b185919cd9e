"""A run: the tier daemon makes copies of the sources, and programs find them in a file table."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from forebay import _native
from forebay._core import option_error
from forebay.options import CONFIG_VARIABLE, OPTIONS, Tier, resolve
from forebay.tools.run.command_line import Arguments

__all__ = [
    "LIBRARY",
    "Settings",
    "environment_of_program",
    "environment_of_user",
    "is_inside_run",
    "open_session",
    "settings",
]

LIBRARY = Path(__file__).resolve().parents[2] / "libforebay_preload.so"

_PRELOAD, _TABLE = "LD_PRELOAD", "FOREBAY_TABLE"

# What the user preloads, while this process goes on without it.
_PRELOADED = "FOREBAY_PRELOADED"

# How many system call filters (seccomp(2)) this process runs under, as in most containers. A
# program with further ones is not served.
_FILTERS = "FOREBAY_FILTERS"


def is_inside_run(arguments: Arguments, environment: Mapping[str, str]) -> bool:
    """Whether another ``forebay run`` serves this one, which has no options."""
    return _TABLE in environment and arguments == Arguments(command=arguments.command)


class Settings(NamedTuple):
    """What a run is opened with; runs of equal settings on a node are one."""

    tiers: tuple[Tier, ...]
    sources: tuple[str, ...]
    frozen: bool
    check: bool
    fetch: str
    keep: bool
    is_of_system: bool
    """Whether the tiers are from the configuration file of the system."""


def settings(arguments: Arguments, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a command line.

    Raises
    ------
    OptionError
        If the preload library or a source cannot be used, or a tier is not described as it should.
    """
    _check_library()
    tiers, is_of_system = _tiers(arguments, environment)
    return Settings(
        tiers=tiers,
        sources=_sources(arguments),
        frozen=arguments.frozen,
        check=arguments.check,
        fetch=arguments.fetch or "follow",
        keep=not arguments.no_keep,
        is_of_system=is_of_system,
    )


def environment_of_user() -> dict[str, str]:
    """Return the environment of the program, as the user gave it.

    Libraries that the user preloads are for the program: one may set the clock, by which this
    process and the tier daemon wait. So this process starts itself anew without them.
    """
    environment = dict(os.environ)
    if environment.get(_PRELOAD) and _TABLE not in environment and _PRELOADED not in environment:
        alone = {**environment, _PRELOADED: environment[_PRELOAD]}
        del alone[_PRELOAD]
        with suppress(OSError):
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], alone)
    if preloaded := environment.pop(_PRELOADED, None):
        environment[_PRELOAD] = preloaded
    return environment


def open_session(settings: Settings) -> _native.RunSession:
    """Open a run with the tier daemon, which is started if none is there.

    Raises
    ------
    OptionError
        If a tier cannot be used.
    StorageError
        If the daemon cannot be reached.
    """
    for tier in settings.tiers:
        _check_apart(tier, settings.sources)
    return _native.RunSession(
        tiers=[tier.facts() for tier in settings.tiers],
        sources=list(settings.sources),
        frozen=settings.frozen,
        check=settings.check,
        fetch=settings.fetch,
        keep=settings.keep,
        daemon=[sys.executable, "-m", "forebay.tools.tiers"],
    )


def environment_of_program(environment: Mapping[str, str], table: Path) -> dict[str, str]:
    """Return the environment in which a program uses a table.

    Libraries that are preloaded already keep their order and come first.
    """
    preloaded = environment.get(_PRELOAD, "")
    if str(LIBRARY) not in preloaded.replace(":", " ").split():
        preloaded = f"{preloaded} {LIBRARY}".lstrip()
    filters = _system_call_filters()
    return {
        **environment,
        _PRELOAD: preloaded,
        _TABLE: str(table),
        **({_FILTERS: str(filters)} if filters else {}),
    }


def _system_call_filters() -> int:
    with suppress(OSError), Path("/proc/self/status").open(encoding="utf-8") as status:
        fields = dict(line.split(":", 1) for line in status)
        # Linux before 5.9 tells only that there are some.
        return int(fields.get("Seccomp_filters", fields.get("Seccomp", "0")))
    return 0


def _check_library() -> None:
    if not os.access(LIBRARY, os.R_OK):
        raise option_error(
            f"preload library {LIBRARY}: cannot be read",
            "`make build` in the source tree, or `pip install .`, builds it",
        )
    if any(separator in str(LIBRARY) for separator in " :"):
        raise option_error(
            f"preload library {LIBRARY}: LD_PRELOAD takes no path with a space or a colon",
            "install Forebay in another directory",
        )


def _tiers(arguments: Arguments, environment: Mapping[str, str]) -> tuple[tuple[Tier, ...], bool]:
    """Return the tiers, and whether they are from the configuration file of the system."""
    tiers: tuple[Tier, ...]
    is_of_system = False
    if arguments.tiers:
        (option,) = (option for option in OPTIONS if option.name == "tiers")
        tiers = option.read("--tier", list(arguments.tiers))
    else:
        if arguments.config:
            environment = {**environment, CONFIG_VARIABLE: arguments.config}
        resolved = resolve({"tiers": None}, environment)
        tiers, is_of_system = resolved["tiers"], "tiers" in resolved.of_system
    if not tiers:
        raise option_error(
            "there is no tier: expected --tier, FOREBAY_TIERS or a configuration file",
            "write for example --tier /scratch/me:200GiB",
        )
    return tiers, is_of_system


def _sources(arguments: Arguments) -> tuple[str, ...]:
    if not arguments.sources:
        raise option_error("there is no source", "name the directory of the data: --source /lustre/data")
    for source in arguments.sources:
        _check_kind(f"--source {source}", source, "a directory or a file", stat.S_ISDIR, stat.S_ISREG)
    # Links stay as the user wrote them.
    return tuple(os.path.abspath(source) for source in arguments.sources)  # noqa: PTH100


def _check_kind(
    what: str, path: str | os.PathLike[str], expected: str, *kinds: Callable[[int], bool]
) -> None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - an empty path is none
    except OSError as error:
        raise option_error(f"{what}: expected {expected}: {error.strerror}") from None
    if not any(is_kind(mode) for is_kind in kinds):
        raise option_error(f"{what}: expected {expected}, found something else")


def _check_apart(tier: Tier, sources: Sequence[str]) -> None:
    """Refuse a tier inside of a source, and the reverse, also through links and bind mounts."""
    _check_kind(f"tier {tier.path}", tier.path, "a directory", stat.S_ISDIR)
    for source in sources:
        for inner, outer in ((tier.path, source), (source, tier.path)):
            if _identity(Path(outer)) in _identities(inner):
                raise option_error(
                    f"tier {tier.path} and source {source}: expected separate directories, "
                    f"found {inner} inside of {outer}",
                    "name a tier on local storage of the node",
                )


def _identities(path: str | os.PathLike[str]) -> set[tuple[int, int]]:
    real = Path(path).resolve()
    return {_identity(one) for one in (real, *real.parents)}


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
