"""Options: their names, the sources of their values, and their valid values.

:data:`OPTIONS` defines each option once. Its value comes from the first of these sources that has
it:

1. the argument of :class:`forebay.Loader` or :func:`forebay.open`,
2. the environment variable ``FOREBAY_`` + its name in capitals,
3. the configuration file: ``$FOREBAY_CONFIG``, else ``forebay.toml`` in the working directory,
4. the configuration file of the system: ``$FOREBAY_SYSTEM_CONFIG``, else ``/etc/forebay.toml``,
5. the default.

Forebay checks a value where it reads it, so that an error names the source. The ranks of a job must
agree: when they make a loader, the engine compares the options on a node, and the channel of the
job compares them between nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay import _native, _renamed
from forebay._core import OptionError, nearest, option_error
from forebay._options.forms import (
    BAD_SAMPLES,
    COLLATES,
    LASTS,
    ORDERS,
    PRESETS,
    checked,
    collate_of,
    from_to,
    last_batch_of,
    one_of,
    order_of,
    store_of,
    strategy_of,
    tiers_of,
)
from forebay._options.parameters import (
    AUTO,
    PER_NODE,
    PER_RANK,
    Group,
    LocalShuffle,
    Opportunistic,
    Store,
    Strategy,
    Tier,
)
from forebay._options.scalars import check_stagger, choice, flag, number, parse_bytes, same
from forebay._warn import warn

__all__ = [
    "AUTO",
    "OPTIONS",
    "PER_NODE",
    "PER_RANK",
    "PRESETS",
    "Group",
    "LocalShuffle",
    "Opportunistic",
    "Option",
    "Resolved",
    "Store",
    "Strategy",
    "Tier",
    "check_stagger",
    "parse_bytes",
    "resolve",
    "strategy_of",
]

WORLDS = ("auto", "mpi", "torchrun", "slurm", "single")
WORKER_KINDS = ("thread", "process")
MAX_THREADS = 1024
MAX_PROCESSES = 256
FORMATS, SCHEMAS = _native.FORMATS, _native.SCHEMAS

CONFIG_VARIABLE = "FOREBAY_CONFIG"
CONFIG_FILE = "forebay.toml"
SYSTEM_CONFIG_VARIABLE = "FOREBAY_SYSTEM_CONFIG"
SYSTEM_CONFIG_FILE = "/etc/forebay.toml"

# Variables that are not options.
_OTHER_VARIABLES = (
    CONFIG_VARIABLE, SYSTEM_CONFIG_VARIABLE, "FOREBAY_TIERS_IDLE", "FOREBAY_CACHE_DIR",
    "FOREBAY_RUNTIME_DIR", "FOREBAY_NODE", "FOREBAY_JOB", "FOREBAY_INTERFACE",
    "FOREBAY_FAILPOINT", "FOREBAY_JOB_ADDRESS", "FOREBAY_LOG", "FOREBAY_MPI_INIT_TIMEOUT",
    "FOREBAY_FILTERS", "FOREBAY_PRELOADED", "FOREBAY_TABLE",
)  # fmt: skip
# Variables that this process has warned of.
_warned_of: set[str] = set()
# Least similarity of names at which one is suggested for the other.
_NEARLY = 0.85

# Arguments of other loaders, with the option of Forebay that has their meaning.
_ELSEWHERE: Mapping[str, str] = {
    "shuffle": 'order="group" (the default) and order="shuffle" shuffle, order="sequential" does not',
    "sampler": "order= takes a function of the epoch that returns sample ids (forebay.Given), or forebay.Weighted(weights); "
    "each rank gets its part of them",
    "batch_sampler": "order= takes a function of the epoch that returns sample ids (forebay.Given)",
    "num_workers": "leave it out: threads of the engine read ahead; workers=n is the number of threads that call "
    'transform= and batch_transform=, or with worker_kind="process" of processes that call transform=',
    "persistent_workers": "leave it out: workers live as long as the loader",
    "worker_init_fn": "leave it out: transform= may be an object that prepares itself in its first call",
    "multiprocessing_context": 'leave it out: worker_kind="process" starts new programs, as spawn does',
    "prefetch_factor": "prefetch=n is the number of batches on which transform= and batch_transform= work ahead; "
    "node_memory= bounds what is read ahead",
    "drop_last": 'last_batch="partial" (the default) shares the rest out over the ranks, last_batch="drop" leaves it out, '
    'last_batch="fill" fills the last step from the start',
    "pin_memory": "forebay.torch.loader takes it, and pins where torch finds a GPU; batches of a Loader are numpy arrays",
    "device": "forebay.torch.loader takes it; batches of a Loader are numpy arrays",
    "collate_fn": "collate= takes a function of the list of what transform= returned",
    "decode": "it is called batch_transform=, a function of the batch; transform= takes a function of one sample",
    "generator": "seed= decides every shuffle",
    "num_replicas": "world= says which ranks there are; under torchrun, MPI and SLURM it is found out",
    "rank": "world=forebay.World(rank=r, size=n); under torchrun, MPI and SLURM it is found out",
    "world_size": "world=forebay.World(rank=r, size=n); under torchrun, MPI and SLURM it is found out",
}


def _refuse_renamed(environment: Mapping[str, str]) -> None:
    """Raise where a variable has the old name of an option: it would have no effect."""
    for variable, advice in _renamed.VARIABLES.items():
        if environment.get(variable):
            raise option_error(f"{variable}: there is no such variable", advice)


# Options of `forebay.open`, not of a loader.
_OF_OPEN = (
    "format",
    "split",
    "database",
    "schema",
    "fields",
    "record_bytes",
    "header_bytes",
    "sample_axis",
    "nulls",
    "follow_symlinks",
)


def unknown_option(name: str) -> OptionError:
    """Make the error for an unknown argument, with the option that has its meaning here."""
    names = [
        "dataset",
        "transform",
        "batch_transform",
        *(option.name for option in OPTIONS if option.name not in _OF_OPEN),
    ]
    hint = _renamed.OPTIONS.get(name) or _ELSEWHERE.get(name)
    if name in _OF_OPEN:
        hint = f"forebay.open takes it: forebay.Loader(forebay.open(path, {name}=...), ...)"
    elif hint is None:
        near = nearest(name, names)
        hint = f"is {near}= meant?" if near else f"the options: {', '.join(sorted(names))}"
    return option_error(f"forebay.Loader: there is no option {name}=", hint)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, its default, the function that checks a value, and its meaning."""

    name: str
    default: Any
    read: Callable[[str, object], Any]
    meaning: str

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"FOREBAY_{self.name.upper()}"


OPTIONS: tuple[Option, ...] = (
    Option("batch_size", None, checked("batch_size", number), "samples per rank and step"),
    Option(
        "global_batch",
        None,
        checked("global_batch", number),
        "samples of all ranks and step, instead of batch_size",
    ),
    Option("order", "group", order_of, "which sample stands where: " + ", ".join(ORDERS)),
    Option("name", "train", checked("name", same), "tells several loaders of one job apart"),
    Option("seed", 0, checked("seed", number), "with the epoch, decides every shuffle"),
    Option("world", "auto", one_of(WORLDS), "who is in the job: " + ", ".join(WORLDS)),
    Option("strategy", Strategy(), strategy_of, "how samples are fetched: " + ", ".join(PRESETS)),
    Option(
        "node_memory", None, parse_bytes, "staging blocks and batch buffers of a node, in bytes or as 2GiB"
    ),
    Option("tiers", (), tiers_of, "directories of the node that keep copies: PATH:SIZE, the nearest first"),
    Option("store", None, store_of, "memory of each node for its share of the dataset: a size, auto or none"),
    Option(
        "expected_epochs",
        None,
        checked("expected_epochs", number),
        "epochs that will be asked for; nothing is read ahead beyond them",
    ),
    Option("last_batch", "partial", last_batch_of, "what the end of an epoch does: " + ", ".join(LASTS)),
    Option(
        "bad_samples",
        "raise",
        checked("bad_samples", same),
        "what a sample that cannot be read does: " + ", ".join(BAD_SAMPLES),
    ),
    Option(
        "checksums",
        False,
        checked("checksums", flag),
        "whether the checksum of every record is computed, where the format has one",
    ),
    Option("workers", None, from_to(1, MAX_THREADS), "threads or processes that call transform="),
    Option("worker_kind", "thread", one_of(WORKER_KINDS), "what they are: " + ", ".join(WORKER_KINDS)),
    Option(
        "prefetch",
        2,
        from_to(0, 60),
        "batches on which transform= and batch_transform= work ahead of the script",
    ),
    Option(
        "collate", "stack", collate_of, "how results of transform= become a batch: " + ", ".join(COLLATES)
    ),
    Option(
        "timeout",
        600.0,
        checked("timeout", number),
        "seconds of stalled storage, or of waiting for other ranks, before an error",
    ),
    Option("format", None, one_of(FORMATS), "the container format (forebay.open): " + ", ".join(FORMATS)),
    Option(
        "database",
        None,
        checked("database", same),
        "named sub-database of an LMDB environment (forebay.open)",
    ),
    Option(
        "schema", "auto", one_of(SCHEMAS), "how records become fields (forebay.open): " + ", ".join(SCHEMAS)
    ),
)
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Resolved:
    """Values by option name, and the sources of those that are not defaults."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    of_system: frozenset[str] = frozenset()
    """Options whose values are from the configuration file of the system."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def _configuration(environment: Mapping[str, str], variable: str, default: str) -> tuple[dict[str, Any], str]:
    """Read a configuration file; one that a variable names must exist."""
    asked = environment.get(variable)
    path = Path(asked or default)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if asked:
            raise option_error(f"{variable}: there is no configuration file {path}") from None
        return {}, str(path)
    except (OSError, UnicodeDecodeError) as error:
        # What is in a directory that cannot be searched is not this job's: no file is looked for.
        if isinstance(error, PermissionError) and not asked and not os.access(path.parent, os.X_OK):
            return {}, str(path)
        raise option_error(f"configuration file {path}: cannot be read: {error}") from error
    # Here, as few jobs have a file, and `forebay run` starts once per rank.
    import tomllib

    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise option_error(f"configuration file {path}: not valid TOML: {error}") from error
    for key in found:
        if advice := _renamed.OPTIONS.get(key):
            raise option_error(f"configuration file {path}: there is no option {key}", advice)
        choice(f"configuration file {path}", key, tuple(_BY_NAME))
    return found, str(path)


def resolve(arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Resolved:
    """Find the value of each option in ``arguments``; None means not given.

    Raises
    ------
    OptionError
        If a value is not valid; the message begins with the source of the value.
    """
    environment = os.environ if environment is None else environment
    files = (
        _configuration(environment, CONFIG_VARIABLE, CONFIG_FILE),
        _configuration(environment, SYSTEM_CONFIG_VARIABLE, SYSTEM_CONFIG_FILE),
    )
    _refuse_renamed(environment)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    strengths: dict[str, int] = {}
    of_system: set[str] = set()
    for name, argument in arguments.items():
        option = _BY_NAME[name]
        places = (
            (f"{name}=", argument),
            (option.variable, environment.get(option.variable) or None),
            *((f"{path}: {name}", configuration.get(name)) for configuration, path in files),
        )
        values[name] = option.default
        for strength, (origin, value) in enumerate(places):
            if value is not None:
                values[name] = option.read(origin, value)
                origins[name] = origin
                strengths[name] = strength
                if strength == len(places) - 1:
                    of_system.add(name)
                break
    _one_of(("batch_size", "global_batch"), values, origins, strengths)
    _warn_of_misspelt(environment)
    return Resolved(values, origins, frozenset(of_system))


def _warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Warn of a variable whose name is nearly one of ours, since it has no effect."""
    known = [*(option.variable for option in OPTIONS), *_OTHER_VARIABLES]
    for name in environment:
        is_unknown = name.startswith("FOREBAY_") and name not in known and name not in _warned_of
        if is_unknown and (meant := nearest(name, known, _NEARLY)):
            _warned_of.add(name)
            warn(f"unknown environment variable {name}; did you mean {meant}?")


def _one_of(
    both: tuple[str, str], values: dict[str, Any], origins: dict[str, str], strengths: Mapping[str, int]
) -> None:
    """Keep one of two options, by the stronger source; raise where one source has both."""
    one, other = both
    if not all(name in strengths for name in both):
        return
    if strengths[one] == strengths[other]:
        raise option_error(f"{origins[one]} and {origins[other]}: give one of them, not both")
    weaker = max(both, key=lambda name: strengths[name])
    values[weaker] = None
    del origins[weaker]


def per_rank_batch(resolved: Resolved, size: int) -> int:
    """Return the samples per rank and step on a job of ``size`` ranks."""
    if (batch_size := resolved["batch_size"]) is not None:
        return int(batch_size)
    global_batch = resolved["global_batch"]
    if global_batch is None:
        raise option_error(
            "neither batch_size= nor global_batch= is given", "batch_size= is samples per rank and step"
        )
    if global_batch % size:
        near = [
            g for g in (global_batch - global_batch % size, global_batch + size - global_batch % size) if g
        ]
        raise option_error(
            f"global_batch={global_batch} cannot be shared out evenly between {size} ranks",
            f"the nearest that can: {', '.join(map(str, near))}",
        )
    return int(global_batch // size)
