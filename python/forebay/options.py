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
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from forebay import _native, _renamed
from forebay._core import OptionError, did_you_mean, nearest, option_error
from forebay._given_order import Given, Weighted
from forebay._warn import warn

__all__ = [
    "OPTIONS",
    "Group",
    "LocalShuffle",
    "Opportunistic",
    "Option",
    "Resolved",
    "Store",
    "Strategy",
    "Tier",
    "parse_bytes",
    "resolve",
    "strategy_of",
]

ORDERS, LASTS, BAD_SAMPLES = (
    tuple(_native.option_words(name)) for name in ("order", "last_batch", "bad_samples")
)
PER_NODE = "per_node"
PER_RANK = "per_rank"
AUTO = "auto"
# Presets by name; forebay_lab has those of papers.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "forebay": {},
    "mmap": {"access": "mmap"},
    "pread": {"access": "pread"},
    "io_uring": {"access": "io_uring"},
}
# Names that forebay_lab adds, for a hint.
_OF_LAB = (
    "lmdb", "lmm", "lmm-dm", "lmm-dio", "lmm-dio-prov", "lmm-dio-prov-coal", "lmm-dio-prov-coal-stag",
    "async", "async-db",
)  # fmt: skip
WORLDS = ("auto", "mpi", "torchrun", "slurm", "single")
WORKER_KINDS = ("thread", "process")
MAX_THREADS = 1024
MAX_PROCESSES = 256
COLLATES = ("stack", "pad", "list", "ragged")
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

_BYTES = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
# As SLURM, Docker and the JVM read them.
_UNITS |= {prefix: 1024**power for power, prefix in enumerate("kmgt", 1)}


def _check(origin: str, name: str, value: Any, *shown: object) -> Any:
    """Return a value that the engine accepts for the option ``name``, else raise.

    ``shown`` is the value as the user wrote it, if that is another.

    Raises
    ------
    OptionError
        If the engine rejects the value; the message begins with ``origin``.
    """
    _native.check_option(origin, name, value, *shown)
    return value


def _number(value: object) -> object:
    """Convert an integer of numpy, or a number in a text; return anything else as it is."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                pass
    elif hasattr(value, "__index__") and not isinstance(value, bool):
        return int(value.__index__())
    return value


def _flag(value: object) -> object:
    """Convert ``"true"`` or ``"false"``; return anything else as it is."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _same(value: object) -> object:
    return value


def check_stagger(origin: str, value: object) -> int | str:
    """Return a number of groups of nodes that take turns, or ``"auto"``."""
    found: int | str = _check(origin, "strategy.stagger", _number(value))
    return found


def _choice(name: str, value: object, valid: Sequence[str]) -> str:
    if value not in valid:
        raise option_error(f"{name}: expected one of {', '.join(valid)}; found {value!r}")
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The group order: shuffle groups of neighbours globally, deal them to lanes, shuffle windows.

    The defaults depend on the dataset, never on memory or a measurement. The parameters determine
    the order, and the state keeps them.

    Parameters
    ----------
    samples : int, optional
        Samples per group, which are read together. The default follows from the mean size of a
        sample; where samples are decoded in chunks, a group consists of whole chunks.
    window : int, optional
        Groups that are shuffled together. The default follows from the mean size of a sample.
    lanes : int, optional
        Sample streams that the ranks divide among them: a multiple of the number of ranks that
        divides the global batch. A run can resume on any number of ranks that divides ``lanes``. By
        default the smallest such number that is at least 8.

    Raises
    ------
    OptionError
        If a number is not an integer of at least 1.
    """

    samples: int | None = None
    window: int | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self, "order")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShuffle:
    """The order ``local-shuffle``: a full shuffle whose samples go to nodes that hold them.

    Parameters
    ----------
    steps : int, optional
        Steps whose samples are dealt together. With 1, the default, each global batch has the
        samples of ``shuffle``. More steps let more samples stay on their nodes, and shuffle less:
        the samples of so many steps are those of ``shuffle``, and the nodes decide which step gets
        them (docs/orders.md).

    Raises
    ------
    OptionError
        If the number is not an integer of at least 1.
    """

    steps: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self, "order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunistic:
    """The order ``opportunistic``, for data larger than the memory of all nodes.

    Nodes keep a part of the data in the memory that ``store=`` gives them. The rest is streamed
    once per epoch in windows; each step draws from both (docs/orders.md).

    Parameters
    ----------
    entropy : float, optional
        Least order entropy, from 0 (a fixed order) to 1 (a full shuffle). The window follows from
        it. By default 0.85, or the highest that memory and nodes allow; with ``window`` alone, no
        bound.
    window : int, optional
        Units of the stream from which samples are drawn at once. By default the fewest that reach
        ``entropy``.
    unit : int or str, optional
        Length of a unit, a run of samples that is kept or streamed as a whole: bytes, or a string
        such as ``"64MiB"``; rounded up to a power of two. It is at least 64 KiB, and leaves each
        node at least 16 units. On disks each unit costs a seek. By default the longest that leaves
        each node 2,048 units, within 1 to 256 MiB and at least 64 samples; shorter, down to 64 KiB,
        if a node would have fewer than 64 units.

    Raises
    ------
    OptionError
        If the entropy is not from 0 to 1, the window not an integer of at least 1, or the unit
        shorter than 64 KiB.
    """

    entropy: float | None = None
    window: int | None = None
    unit: int | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.unit, str):
            object.__setattr__(self, "unit", _bytes("Opportunistic(unit=)", self.unit))
        _check_fields(self, "order")


class _OldParameters:
    """A class that refuses parameters by their old names; a base, as signatures are then kept."""

    __slots__ = ()

    def __new__(cls, **parameters: object) -> Self:
        _refuse_old_parameters(cls.__name__, parameters)
        return object.__new__(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(_OldParameters):
    """How samples get from storage into batches; it never changes which samples a batch holds.

    Parameters
    ----------
    access : {"auto", "mmap", "pread", "io_uring"}
        How samples are read. ``auto`` uses ``mmap`` only for local files that are resident in the
        page cache, and reads otherwise. ``io_uring`` falls back to ``pread`` where the kernel
        refuses it (one of ``Loader.config.fallbacks``).
    readers : int, "per_node" or "per_rank", optional
        Reader threads per node. By default 2 on a local file system and 8 on a remote one; there,
        in orders that go forward or in groups, 4 that announce large reads to the kernel.
        ``"per_node"``: 1 per node, 2 above 16 ranks; only they touch storage, as LMDBIO's roots do.
        With any other value, a rank reads its large samples directly into the batch.
        ``"per_rank"``: one for each rank.
    coalesce : int, optional
        Steps that one read may span, where the order goes step by step (all but ``group`` and
        ``opportunistic``). The default follows from ``node_memory``.
    stagger : int or "auto", optional
        Groups of nodes whose readers take turns, so that one group touches storage at a time.
        ``"auto"``: the number that measures best (:meth:`Loader.set_stagger` changes it later). By
        default nodes do not take turns.
    prefetch_windows : int, optional
        Windows of each lane to prefetch in the order ``group``, windows of the node in
        ``opportunistic``; in other orders, segments. 1 reads the next window when the previous one
        is used up, 2 while it is in use. By default slightly more than 1, since windows end at
        different steps; in ``opportunistic`` 2, which is the least there.
    direct : bool, optional
        Whether to read with O_DIRECT, past the page cache. By default where the files exceed half
        of the memory, reads are not announced, and no store holds samples. Announced reads go
        through the page cache; by default readers then drop such large files from it, with False
        they do not.
    batch_buffers : int, optional
        Batch buffers per rank, at least 2. A script that holds more batches than that gets copies
        in private memory. By default 4: two for the script and two to fill; 8 where a batch takes
        at most 2 MiB, or 256 KiB if ranks copy from the page cache; where images are decoded, two
        more than threads that decode.

    Raises
    ------
    OptionError
        If a value is none of those above, or two values contradict each other.
    """

    NATIVE: ClassVar[ModuleType] = _native
    """The native module whose engine has what the strategy asks for."""

    access: str = "auto"
    readers: int | str | None = None
    direct: bool | None = None
    batch_buffers: int | None = None
    coalesce: int | None = None
    stagger: int | str | None = None
    prefetch_windows: int | None = None

    def __post_init__(self) -> None:
        _check_fields(self, "strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The in-memory store: the nodes of a job hold the dataset in their memory, each a share.

    The nodes load the dataset once, and serve it to each other; what fits in no share is read from
    the source (docs/store.md). In the order ``opportunistic``, nodes serve nothing to each other,
    and the rest is streamed.

    Parameters
    ----------
    size : int or str
        Memory of each node for its share: bytes, a string such as ``"8GiB"``, or ``"auto"``: what
        the share needs, up to half of the free memory.
    on_lost : {"raise", "source"}
        What happens where the share of another node is lost. ``raise``: an error that names the
        node and the step. ``source``: its samples are read from the source.
    requests_per_node : int or "auto"
        How many requests a rank has in flight to each other node, at most; 1 to 64. ``auto``: 4.
        There is one request per node and step, so as many steps are in flight, up to
        ``batch_buffers`` - 1.
    request_bytes : int or str
        The largest request to another node: bytes, a string such as ``"1MiB"``, or ``"auto"``: 64
        MiB; 4 KiB to 1 GiB. A step that needs more of a node takes several requests.

    Raises
    ------
    OptionError
        If a value is none of those above.
    """

    size: int | str = AUTO
    on_lost: str = "raise"
    requests_per_node: int | str = AUTO
    request_bytes: int | str = AUTO

    def __post_init__(self) -> None:
        for name in ("size", "request_bytes"):
            if isinstance(value := getattr(self, name), str) and value != AUTO:
                object.__setattr__(self, name, _bytes(f"Store({name}=)", value))
        _check_fields(self, "store")


def _check_fields(one: _OrderKind | Strategy | Store, prefix: str) -> None:
    """Convert and check the parameters; None is not given where it is the default."""
    found = {}
    for field in fields(one):
        value = _number(given) if not isinstance(given := getattr(one, field.name), str) else given
        object.__setattr__(one, field.name, value)
        if value is not None or field.default is not None:
            found[field.name] = value
    _native.check_parameters(type(one).__name__, prefix, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A storage tier: a directory of the node in which Forebay keeps copies of what it read.

    Parameters
    ----------
    path : str or os.PathLike
        An existing directory on storage of this node, such as ``/dev/shm`` or ``/scratch/me``.
    size : int or str
        What the copies of this user may take there, in bytes or as ``"200GiB"``; at least 1 MiB.
    keep : bool
        Whether copies in memory (``tmpfs``) stay when no loader uses them. Copies on disks always
        do.
    force : bool
        Whether a network file system may be a tier.

    Raises
    ------
    OptionError
        If a value is not valid.
    """

    path: str | os.PathLike[str]
    size: int | str
    keep: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        found = {
            "path": os.fspath(self.path) if isinstance(self.path, os.PathLike) else self.path,
            "size": _bytes("Tier(size=)", self.size),
            "keep": _flag(self.keep),
            "force": _flag(self.force),
        }
        _native.check_parameters("Tier", "tiers", found, given)
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        """Return the tier as ``PATH:SIZE``."""
        flags = "".join(f":{name}" for name in ("keep", "force") if getattr(self, name))
        return f"{self.path}:{self.size}{flags}"

    def facts(self) -> dict[str, Any]:
        """Return the tier as the engine takes it."""
        return {
            "path": os.path.abspath(self.path),  # noqa: PTH100 - links stay as the user wrote them
            "bytes": self.size,
            "keep": self.keep,
            "force": self.force,
        }


_OrderKind: TypeAlias = Group | LocalShuffle | Opportunistic
_Kind = TypeVar("_Kind", bound=_OrderKind | Strategy | Store)

# The orders that have parameters.
_ORDER_KINDS: Mapping[str, type[_OrderKind]] = {
    "group": Group,
    "local-shuffle": LocalShuffle,
    "opportunistic": Opportunistic,
}


def parse_bytes(name: str, value: object) -> int:
    """Return a number of bytes from an integer or string: ``"2GiB"``, ``"2G"``, ``"500 MB"``.

    K, M, G and T without ``B`` are powers of 1024, as KiB, MiB, GiB and TiB.

    Raises
    ------
    OptionError
        If it is no positive number of bytes; the message begins with ``name``.
    """
    size: int = _check(name, "node_memory", _bytes(name, value), value)
    return size


def _bytes(name: str, value: object) -> int:
    size = _number(value) if not isinstance(value, str) else None
    if isinstance(value, str) and (match := _BYTES.match(value)):
        factor = _UNITS.get(match.group(2).lower(), 0)
        size = int(float(match.group(1)) * factor) or None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise option_error(
            f"{name}: expected a positive number of bytes, found {value!r}", 'write for example "2GiB"'
        )
    return size


def _checked(name: str, convert: Callable[[object], object]) -> Callable[[str, object], Any]:
    return lambda origin, value: _check(origin, name, convert(value))


def _choose(valid: Sequence[str]) -> Callable[[str, object], str]:
    return lambda name, value: _choice(name, value, valid)


def _details(origin: str, text: str, kind: type[_OrderKind | Strategy | Store]) -> dict[str, Any]:
    """Read ``key=value,key=value``."""
    parts = [part.partition("=") for part in filter(None, text.split(","))]
    _check_keys(origin, [key for key, _, _ in parts], kind)
    return {key: _number(_flag(value)) for key, _, value in parts}


def _make(origin: str, kind: type[_Kind], details: Mapping[str, Any]) -> _Kind:
    """Make an order or a strategy from parameters that came from ``origin``."""
    try:
        return kind(**details)
    except OptionError as error:
        if origin.endswith("="):
            raise  # an argument: the parameter says it all
        raise option_error(f"{origin}: {error}") from error


def _order(name: str, value: object) -> str | _OrderKind | Given | Weighted | Callable[[int], Any]:
    """Accept a name, an order, a function, ``group:samples=512,window=4``, or a TOML table."""
    if isinstance(value, _OrderKind | Given | Weighted) or (callable(value) and not isinstance(value, type)):
        return value
    if isinstance(value, Mapping):
        details = dict(value)
        kind = details.pop("kind", "group")
        if details and kind in _ORDER_KINDS:
            _check_keys(name, details, _ORDER_KINDS[kind])
            return _make(name, _ORDER_KINDS[kind], details)
        value = kind
    if isinstance(value, str) and ":" in value:
        kind, _, text = value.partition(":")
        if kind in _ORDER_KINDS:
            return _make(name, _ORDER_KINDS[kind], _details(name, text, _ORDER_KINDS[kind]))
    if value not in ORDERS:
        raise option_error(
            f"{name}: expected one of {', '.join(ORDERS)}, forebay.Group(...), forebay.LocalShuffle(...), "
            f"forebay.Opportunistic(...), forebay.Given(...), forebay.Weighted(...) or a function of the epoch; "
            f"found {value!r}"
        )
    return str(value)


def _store(origin: str, value: object) -> Store | None:
    """Accept a size, ``auto``, ``none``, a `Store`, ``auto:on_lost=source``, or a TOML table."""
    if isinstance(value, Store) or value == "none":
        return value if isinstance(value, Store) else None
    details: dict[str, Any] = {}
    if isinstance(value, Mapping):
        details = dict(value)
        _check_keys(origin, details, Store)
    else:
        if isinstance(value, str) and ":" in value:
            value, _, text = value.partition(":")
            details = _details(origin, text, Store)
            if "size" in details:
                raise option_error(f"{origin}: the size stands before the colon; found {value}:{text}")
        if value != AUTO:
            value = _check(origin, "store.size", _bytes(origin, value), value)
        details["size"] = value
    return _make(origin, Store, details)


def strategy_of(
    origin: str,
    value: object,
    presets: Mapping[str, Mapping[str, Any]] = PRESETS,
    kind: type[Strategy] = Strategy,
) -> Strategy:
    """Accept a name, a `Strategy`, ``forebay:access=pread,readers=2``, or a TOML table.

    Raises
    ------
    OptionError
        If it is none of these; the message begins with ``origin``.
    """
    if isinstance(value, Strategy):
        return value
    details: dict[str, Any] = {}
    if isinstance(value, Mapping):
        details = dict(value)
        value = details.pop("name", "forebay")
        _check_keys(origin, details, kind)
    elif isinstance(value, str) and ":" in value:
        value, _, text = value.partition(":")
        details = _details(origin, text, kind)
    if isinstance(value, str) and value not in presets and value not in _OF_LAB:
        if advice := _renamed.VALUES.get(("strategy", value)):
            raise option_error(f"{origin}: unknown strategy {value!r}", advice)
        raise option_error(
            f"{origin}: unknown strategy {value!r}{did_you_mean(value, tuple(presets))}",
            f"strategies: {', '.join(presets)}",
        )
    if value in _OF_LAB and value not in presets:
        raise option_error(
            f"{origin}: expected one of {', '.join(presets)}; found {value!r}",
            f"the strategies of papers are in forebay-lab: strategy=forebay_lab.strategy({value!r})",
        )
    return _make(origin, kind, {**presets[_choice(origin, value, tuple(presets))], **details})


def _check_keys(name: str, found: Iterable[str], kind: type[_OrderKind | Strategy | Store]) -> None:
    if issubclass(kind, Strategy):
        _refuse_old_parameters(name, found)
    for key in found:
        _choice(name, key, tuple(field.name for field in fields(kind)))


def _refuse_old_parameters(origin: str, found: Iterable[str]) -> None:
    """Raise where a parameter of a strategy has an old name."""
    for name in found:
        if advice := _renamed.PARAMETERS.get(name):
            raise option_error(f"{origin}: there is no parameter {name}=", advice)


def _from_to(least: int, most: int) -> Callable[[str, object], int]:
    def read(origin: str, value: object) -> int:
        number = _number(value)
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise option_error(f"{origin}: expected an integer from {least} to {most}, found {value!r}")
        return number

    return read


def _collate(origin: str, value: object) -> str | Mapping[Any, Any] | Callable[[list[Any]], Any]:
    """Accept a name, a mapping of fields, ``image=stack,boxes=ragged``, or a function."""
    if isinstance(value, str) and "=" in value:
        pairs = [part.partition("=") for part in value.split(",")]
        value = {key.strip(): how.strip() for key, _, how in pairs}
        value = {int(key) if key.isdecimal() else key: how for key, how in value.items()}
    if isinstance(value, Mapping):
        if not value:
            raise option_error(f"{origin}: expected a field, found an empty mapping")
        return {
            ... if key == "*" else key: _field_collate(f"{origin}: {key}", one) for key, one in value.items()
        }
    return value if callable(value) else _choice(origin, value, COLLATES)


def _field_collate(origin: str, value: object) -> str | Mapping[Any, Any]:
    if callable(value):
        raise option_error(
            f"{origin}: expected one of {', '.join(COLLATES)}, found a function",
            "a function takes the whole results: collate=function",
        )
    found = _collate(origin, value)
    assert not callable(found)
    return found


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


def _last_batch(origin: str, value: object) -> str:
    if isinstance(value, str) and (advice := _renamed.VALUES.get(("last_batch", value))):
        raise option_error(f"{origin}: expected one of {', '.join(LASTS)}; found {value!r}", advice)
    return str(_checked("last_batch", _same)(origin, value))


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


def _tiers(origin: str, value: object) -> tuple[Tier, ...]:
    """Accept a list of tiers, a text with commas between them, or ``none``."""
    if value == "none":
        value = []
    elif isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    elif isinstance(value, Tier | Mapping):
        value = [value]
    if not isinstance(value, Iterable):
        raise option_error(f"{origin}: expected a list of tiers, found {value!r}", _tier_hint(origin))
    return tuple(_tier(origin, one) for one in value)


def _tier_hint(origin: str) -> str:
    """Return an example of what may be written there."""
    if origin.startswith("--"):
        return f"write for example {origin} /scratch/me:200GiB"
    return 'write for example tiers=["/dev/shm:8GiB", "/scratch/me:200GiB"]'


def _tier(origin: str, value: object) -> Tier:
    """Accept a `Tier`, ``PATH:SIZE[:keep][:force]``, or a TOML table."""
    if isinstance(value, Tier):
        return value
    if isinstance(value, Mapping):
        for key in value:
            _choice(origin, key, tuple(field.name for field in fields(Tier)))
        details = dict(value)
    elif isinstance(value, str):
        path, *words = value.strip().split(":")
        flags = dict.fromkeys(words[1:], True)
        for word in flags:
            _choice(f"{origin}: {value}", word, ("keep", "force"))
        details = {"path": path, **({"size": words[0]} if words else {}), **flags}
    else:
        raise option_error(f"{origin}: expected PATH:SIZE, found {value!r}", _tier_hint(origin))
    for name in ("path", "size"):
        if name not in details:
            raise option_error(f"{origin}: expected PATH:SIZE, found {value!r}", _tier_hint(origin))
    try:
        return Tier(**details)
    except OptionError as error:
        raise option_error(f"{origin}: {value}: {error}") from error


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
    Option("batch_size", None, _checked("batch_size", _number), "samples per rank and step"),
    Option(
        "global_batch",
        None,
        _checked("global_batch", _number),
        "samples of all ranks and step, instead of batch_size",
    ),
    Option("order", "group", _order, "which sample stands where: " + ", ".join(ORDERS)),
    Option("name", "train", _checked("name", _same), "tells several loaders of one job apart"),
    Option("seed", 0, _checked("seed", _number), "with the epoch, decides every shuffle"),
    Option("world", "auto", _choose(WORLDS), "who is in the job: " + ", ".join(WORLDS)),
    Option("strategy", Strategy(), strategy_of, "how samples are fetched: " + ", ".join(PRESETS)),
    Option(
        "node_memory", None, parse_bytes, "staging blocks and batch buffers of a node, in bytes or as 2GiB"
    ),
    Option("tiers", (), _tiers, "directories of the node that keep copies: PATH:SIZE, the nearest first"),
    Option("store", None, _store, "memory of each node for its share of the dataset: a size, auto or none"),
    Option(
        "expected_epochs",
        None,
        _checked("expected_epochs", _number),
        "epochs that will be asked for; nothing is read ahead beyond them",
    ),
    Option("last_batch", "partial", _last_batch, "what the end of an epoch does: " + ", ".join(LASTS)),
    Option(
        "bad_samples",
        "raise",
        _checked("bad_samples", _same),
        "what a sample that cannot be read does: " + ", ".join(BAD_SAMPLES),
    ),
    Option(
        "checksums",
        False,
        _checked("checksums", _flag),
        "whether the checksum of every record is computed, where the format has one",
    ),
    Option("workers", None, _from_to(1, MAX_THREADS), "threads or processes that call transform="),
    Option("worker_kind", "thread", _choose(WORKER_KINDS), "what they are: " + ", ".join(WORKER_KINDS)),
    Option(
        "prefetch",
        2,
        _from_to(0, 60),
        "batches on which transform= and batch_transform= work ahead of the script",
    ),
    Option("collate", "stack", _collate, "how results of transform= become a batch: " + ", ".join(COLLATES)),
    Option(
        "timeout",
        600.0,
        _checked("timeout", _number),
        "seconds of stalled storage, or of waiting for other ranks, before an error",
    ),
    Option("format", None, _choose(FORMATS), "the container format (forebay.open): " + ", ".join(FORMATS)),
    Option(
        "database",
        None,
        _checked("database", _same),
        "named sub-database of an LMDB environment (forebay.open)",
    ),
    Option(
        "schema", "auto", _choose(SCHEMAS), "how records become fields (forebay.open): " + ", ".join(SCHEMAS)
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
        _choice(f"configuration file {path}", key, tuple(_BY_NAME))
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
