"""Options that have parameters: orders, the strategy, the store, tiers.

Each checks its parameters when it is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, ClassVar, Self, TypeAlias

from forebay import _native, _renamed
from forebay._core import option_error
from forebay._options.scalars import byte_count, flag, number

__all__ = [
    "AUTO",
    "ORDER_KINDS",
    "PER_NODE",
    "PER_RANK",
    "Group",
    "LocalShuffle",
    "Opportunistic",
    "OrderKind",
    "Store",
    "Strategy",
    "Tier",
    "refuse_old_parameters",
]

PER_NODE = "per_node"
PER_RANK = "per_rank"
AUTO = "auto"


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
            object.__setattr__(self, "unit", byte_count("Opportunistic(unit=)", self.unit))
        _check_fields(self, "order")


class _OldParameters:
    """A class that refuses parameters by their old names; a base, as signatures are then kept."""

    __slots__ = ()

    def __new__(cls, **parameters: object) -> Self:
        refuse_old_parameters(cls.__name__, parameters)
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
                object.__setattr__(self, name, byte_count(f"Store({name}=)", value))
        _check_fields(self, "store")


def _check_fields(one: OrderKind | Strategy | Store, prefix: str) -> None:
    """Convert and check the parameters; None is not given where it is the default."""
    found = {}
    for field in fields(one):
        value = number(given) if not isinstance(given := getattr(one, field.name), str) else given
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
            "size": byte_count("Tier(size=)", self.size),
            "keep": flag(self.keep),
            "force": flag(self.force),
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


def refuse_old_parameters(origin: str, found: Iterable[str]) -> None:
    """Raise where a parameter of a strategy has an old name."""
    for name in found:
        if advice := _renamed.PARAMETERS.get(name):
            raise option_error(f"{origin}: there is no parameter {name}=", advice)


OrderKind: TypeAlias = Group | LocalShuffle | Opportunistic

ORDER_KINDS: Mapping[str, type[OrderKind]] = {
    "group": Group,
    "local-shuffle": LocalShuffle,
    "opportunistic": Opportunistic,
}
"""The orders that have parameters, by name."""
