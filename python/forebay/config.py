"""What a loader decided and found, as values: :attr:`Loader.config`.

Each access returns a new, frozen :class:`Config`. Between two accesses only ``now``, ``fallbacks``
and the epochs of the shuffle quality may differ. :func:`dataclasses.asdict` makes a dictionary that
``json`` can write. :meth:`Loader.explain` renders the same facts as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forebay.options import Resolved, Strategy

__all__ = [
    "Config",
    "Data",
    "EpochEnd",
    "EpochForecast",
    "Fallback",
    "Given",
    "GroupSize",
    "Index",
    "Locality",
    "Memory",
    "MixedSource",
    "Mixture",
    "NoCopies",
    "Now",
    "Order",
    "PerSample",
    "Reading",
    "ShuffleQuality",
    "StoreFacts",
    "StoreProbe",
    "Streaming",
    "TierLevel",
    "Tiers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The dataset and where it lies."""

    samples: int
    """Samples of the dataset."""
    record_bytes: int
    """Bytes of all records."""
    file_bytes: int
    """Bytes of all files."""
    unit_samples: int
    """Samples that are decoded together; 1 where each stands alone."""
    fields: Mapping[str, tuple[str, tuple[int, ...] | None]]
    """Field name → (numpy dtype name, shape of one sample); shape None: the length varies."""
    file_system: str
    """Kind of the file system, such as ``ext4``; several are joined by ``and``."""
    is_local: bool
    """Whether all files lie on file systems of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """Parameters of a group order."""

    samples: int
    """Samples per group."""
    window: int
    """Groups per window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """How well an order shuffles; docs/orders.md has the formulas.

    ``groups`` and the fields after it are None where no bound applies.
    """

    order_entropy: float | None
    """Entropy relative to a full shuffle: 1 for a full shuffle, 0 for none."""
    same_group_pairs: float | None
    """Chance that two samples of a global batch come from the same group."""
    full_shuffle_same_group_pairs: float | None
    """The same chance under a full shuffle."""
    groups: int | None
    """Groups of the order."""
    proven_epochs: int | None
    """Convergence is proven unharmed for fewer epochs than this."""
    epochs: int | None
    """Epochs of the training, as far as they are known."""
    within_bound: bool | None
    """Whether ``epochs`` is below ``proven_epochs``."""
    suggested_group: GroupSize | None
    """The smallest groups within the bound, where ``within_bound`` is False.

    None where the dataset is too small for them.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """How the order ``local-shuffle`` gives samples to the nodes that hold them."""

    pool_steps: int
    """Steps whose samples are dealt together."""
    nodes: int
    """Nodes that share the dataset."""
    local_share: float
    """Expected share (0 to 1) of a node's samples that are of its own share of the dataset."""
    held_share: float
    """Share (0 to 1) of the dataset's samples that this node holds."""
    units: int | None = None
    """Runs of samples that are shared out; None on one node."""
    unit_bytes: int | None = None
    """About the length of a unit [bytes]; None on one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """What the nodes keep in memory and stream in the order ``opportunistic``."""

    nodes: int
    """Nodes that share the dataset."""
    resident_share: float
    """Share (0 to 1) of the dataset's samples that all nodes keep."""
    own_resident_share: float
    """Share (0 to 1) of the dataset's samples that this node keeps."""
    resident_bytes: int
    """Memory of the samples that this node keeps [bytes]."""
    loaded_bytes: int
    """What this node read from the source for them [bytes]."""
    streamed_bytes: int
    """What all nodes read from the source in each epoch [bytes]."""
    streamed_bytes_without_windows: int
    """The same if the windows took no memory from samples that nodes keep [bytes]."""
    units: int
    """Runs of samples that are kept or streamed as a whole."""
    unit_bytes: int
    """About the length of a unit [bytes]."""
    streamed_units: int
    """Units that no node keeps."""
    window_units: int
    """Units of a window, from which samples are drawn at once."""
    window_bytes: int
    """Most bytes of a window of this node [bytes]."""
    staging_bytes: int
    """Staging memory of this node for a window and for what is read meanwhile [bytes]."""
    entropy_bound: float | None
    """Least order entropy; None where the user gave a window alone, nothing is streamed, or the
    default is out of reach."""
    order_entropy: float
    """Order entropy of the samples drawn: 1 for a full shuffle."""
    cross_entropy: float
    """What a draw lacks to one of a full shuffle [nats]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """A source of a mixture."""

    name: str
    """Its name."""
    weight: float
    """Its share (0 to 1) of the samples delivered."""
    samples: int
    """Its samples."""
    passes: float | None
    """How often an epoch passes it; below 1 where an epoch leaves samples out. None with
    ``stop="never"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What a mixture draws from."""

    stop: str
    """When an epoch ends: ``first``, ``all`` or ``never``."""
    sources: tuple[MixedSource, ...]
    """The sources, in the order of their samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """What an epoch has in all ranks with one ``last_batch``."""

    last_batch: str
    """``partial``, ``fill`` or ``drop``."""
    steps: int
    """Steps of an epoch."""
    delivered: int
    """Samples that all ranks together get, repeated ones counted again."""
    repeated: int
    """Samples that come twice."""
    left_out: int
    """Samples that do not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of the samples. ``config.given`` holds ``order`` where the user chose it."""

    kind: str
    """``group``, ``sequential``, ``contiguous``, ``shuffle``, ``local-shuffle``,
    ``opportunistic``, or ``given`` for a function."""
    steps: int | None
    """Steps of an epoch; None where it never ends."""
    global_batch: int
    """Samples of all ranks and one step."""
    last_batch: str
    """The option ``last_batch=``; ``drop`` of a mixture, whose epochs have whole steps only."""
    ends: tuple[EpochEnd, ...]
    """What an epoch has with each ``last_batch``: ``partial``, ``fill``, ``drop``; without those
    that are not possible. None of a mixture."""
    expected_epochs: int | None
    """The option ``expected_epochs=``."""
    lanes: int
    """Streams that the ranks share out between them."""
    allowed_ranks: tuple[int, ...]
    """Numbers of ranks on which a state of this loader can be resumed."""
    group_samples: int | None
    """Samples per group of the order ``group``."""
    group_window: int | None
    """Groups per window of the order ``group``."""
    mixture: Mixture | None
    """The sources, where the dataset is a mixture."""
    local: Locality | None
    """How the order ``local-shuffle`` gives samples to nodes."""
    streaming: Streaming | None
    """What the nodes keep and stream in the order ``opportunistic``."""
    shuffle_quality: ShuffleQuality
    """How well the order shuffles."""

    @property
    def rest(self) -> int:
        """Samples of the steps at the end of an epoch that are no whole step; 0 without any."""
        delivered = [end.delivered for end in self.ends if end.last_batch == self.last_batch]
        return sum(delivered) % self.global_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Where the index came from."""

    source: str
    """``sidecar``: loaded; ``build``: built for this loader; ``recipe``: computed from a recipe;
    ``scan``: one process walked all records."""
    verified: bool | None = None
    """Of a recipe: whether it was compared with all records."""
    recipe_bytes: int | None = None
    """Of a recipe: its length."""
    path: str | None = None
    """Of a recipe: its file."""
    scanning_node: str | None = None
    """Of a scan: whose leader walked: ``this`` node, ``other``, or ``each`` without links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the node finds and reads samples. ``config.strategy`` holds what was asked for."""

    locate: str
    """How samples are found: ``index``, or as ``forebay_lab.Strategy(locate=)`` says."""
    io_mode: str
    """``planned``: readers read for all ranks of the node; ``mapped``: each rank copies from its
    own mapping; ``store``: ranks take samples from the memory of nodes; ``cursor_walk``: readers or
    ranks find records by walking a mapping."""
    roots: bool
    """Whether the readers are LMDBIO's roots, which alone touch storage."""
    access: str
    """``mmap``, ``pread`` or ``io_uring``."""
    direct: bool
    """Whether reads bypass the page cache (O_DIRECT)."""
    drops_behind: bool
    """Whether readers drop what they have read from the page cache, because the files exceed it."""
    mapping: str
    """``none``; ``cold``: the files are mapped; ``resident``: they are, and in the page cache."""
    read_ahead: str
    """What prefetches from storage: ``kernel``, ``announced`` (the readers announce) or ``off``."""
    readers: int
    """Reader threads of the node; 0 where each rank gets its samples itself."""
    max_read_bytes: int
    """Length of the largest read."""
    gap_bytes: int
    """Two reads are joined over a gap of at most this length."""
    first_segment_steps: int
    """Steps that are planned and read together at the start, where the order goes step by step."""
    segment_steps: int
    """The same later."""
    checksums: bool
    """Whether the checksum of each record is computed."""
    decode_amplification: float
    """Samples that are decoded for each one delivered, estimated, where many are decoded together
    and the order takes them from anywhere; else 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of the loader on this node."""

    requested_bytes: int
    """The option ``node_memory=``, or its default."""
    is_default: bool
    """Whether that is the default."""
    bound: str
    """What bounds ``node_memory=``: ``free`` memory, or ``address_space`` left by ``ulimit -v``."""
    bound_bytes: int
    """How much that is."""
    is_half_of_address_space: bool
    """Whether the default is half of the address space that is left."""
    held_bytes: int
    """What other loaders of the job hold of the budget."""
    retained_bytes: int
    """Values that the index build read and that are kept in memory."""
    node_bytes: int
    """Memory of the node or the control group."""
    budget_bytes: int
    """What this loader may use."""
    minimum_bytes: int
    """The least budget that works for these options."""
    on_loan: bool
    """Whether the loader reserves none of it, but takes it while it is iterated."""
    region_bytes: int
    """Shared memory of the node, in total."""
    staging_bytes: int
    """Of that, the staging blocks."""
    kept_unit_bytes: int
    """Decoded data that each process of the node keeps, beside the shared memory, where the order
    comes back to samples that are decoded together."""
    batch_buffers: int
    """Batch buffers of each rank."""
    batch_buffer_bytes: int
    """Size of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLevel:
    """A storage tier of the node, when the loader was made."""

    path: str
    """Its directory."""
    bytes: int
    """What the copies of this user may take there."""
    slots: int
    """Chunks of 1 MiB of this dataset that it may hold."""
    held_bytes: int
    """Bytes of this dataset that it held already."""
    is_memory: bool
    """Whether it is memory (``tmpfs``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochForecast:
    """What an epoch is expected to read, of all nodes [bytes]."""

    source: float
    """From the dataset's own files."""
    levels: tuple[float, ...]
    """From each tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCopies:
    """Why a loader makes no copies."""

    reason: Literal["source_in_memory", "one_epoch", "cost_more"]
    """The source is in memory, nothing is read twice, or copies cost more reads than they save."""
    pays_from: int | None
    """Number of epochs from which copies would save more than they cost; None where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """How the node uses its storage tiers."""

    levels: tuple[TierLevel, ...]
    """The tiers, the nearest first."""
    chunks: int
    """Chunks of the dataset."""
    nodes: int
    """Nodes that share an epoch; each has tiers of its own."""
    copies: bool
    """Whether what is read is copied into the tiers."""
    no_copies: NoCopies | None
    """Why not; None where copies are made."""
    buffer_bytes: int
    """Memory of each process for copies on their way."""
    forecast: tuple[EpochForecast, ...]
    """The first epochs of this loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProbe:
    """What the network between the nodes carried while the loader was made."""

    rate_mib_s: float
    """Rate at which this node fetched from the next one [MiB/s]."""
    round_trip_us: float
    """Shortest time for a request of one byte to it [us]."""
    slowest_rate_mib_s: float
    """The lowest such rate of all nodes [MiB/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The in-memory store: what the nodes of the job hold."""

    nodes: int
    """Nodes that serve a share."""
    chunks: int
    """Chunks (1 MiB) of the dataset."""
    held_chunks: int
    """Chunks that a node holds; the others are read from the source."""
    own_chunks: int
    """Chunks that this node holds."""
    share_bytes: int
    """Memory of this node's share [bytes]."""
    loaded_bytes: int
    """Bytes that this node has read from the source for its share [bytes]."""
    kept_bytes: int
    """Bytes of its share that it has from the store daemon, which kept them from an earlier job."""
    is_kept: bool
    """Whether the store daemon keeps the share for later jobs."""
    transport: str | None
    """How this rank fetches from other nodes: ``tcp`` or ``ucx``; None on one node."""
    ucx_transports: tuple[str, ...]
    """With ``ucx``, its transports."""
    no_ucx: str | None
    """Why UCX is not used; None if it is, and on one node."""
    probe: StoreProbe | None
    """A short measurement of the network; None on one node, or if it failed."""
    requests_per_node: int
    """Requests that a rank has in flight to each other node, at most."""
    request_bytes: int
    """Largest request [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerSample:
    """Functions of the user that threads or processes call ahead of the script."""

    functions: tuple[str, ...]
    """Which: ``transform``, ``batch_transform``."""
    workers: int
    """Threads or processes that call ``transform``."""
    worker_kind: str
    """What they are: ``thread``, ``process``."""
    threads: int
    """Threads that call the functions, or that hand samples to processes and call
    ``batch_transform``."""
    prefetch: int
    """Batches that are worked on ahead of the script."""
    collate: str
    """How results of samples become a batch: the option ``collate=``, or ``function``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Something that the loader does in another way than requested."""

    wanted: str
    """What was requested; docs/metrics.md lists the values, and what happens instead."""
    reason: str
    """Why it is impossible, as text for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What changes while the loader lives."""

    epochs: int | None
    """The option ``expected_epochs=``, or the epochs begun where these are more."""
    touched_bytes: int
    """Shared memory that takes real memory."""
    huge_page_bytes: int | None
    """Of that, huge pages; None where the system gives none to shared memory."""
    stagger_groups: int | None
    """Groups of nodes that take turns; None without turns."""
    mapped_from_epoch: int | None
    """First epoch that ranks copied from the page cache where the files were not there when the
    loader was made: from then on nothing is planned. None where all epochs are planned, or none."""
    all_batch_buffers_kept: bool
    """Whether the script keeps all batch buffers; batches are then copied into private memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The value of an option that was given, and where it was given."""

    value: str
    """The value as text."""
    origin: str
    """Where it was given: the argument as ``name=``, the environment variable, or ``file: name`` of
    the configuration file."""

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of :class:`Loader`."""
        return self.origin.endswith("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a loader decided and found, and its fallbacks."""

    strategy: Strategy
    """What was asked for."""
    given: Mapping[str, Given]
    """Each option that was given, by name; all others have their defaults."""
    data: Data
    """The dataset."""
    order: Order
    """The order of the samples."""
    index: Index
    """Where the index came from."""
    reading: Reading
    """How samples are found and read."""
    memory: Memory
    """Memory and sizes."""
    tiers: Tiers | None
    """Storage tiers; None without any."""
    store: StoreFacts | None
    """The in-memory store."""
    linked_nodes: int | None
    """Nodes whose leaders are linked; None without links."""
    per_sample: PerSample | None
    """Functions that threads call; None where there are none, or the script's thread calls them."""
    fallbacks: tuple[Fallback, ...]
    """What the loader does in another way than requested, one for each request."""
    now: Now
    """What changes while the loader lives."""


def from_engine(found: Mapping[str, Any], options: Resolved, per_sample: PerSample | None) -> Config:
    """Return the :class:`Config` for the facts of an engine, resolved options, and functions."""
    data, order = found["data"], found["order"]
    quality = order["shuffle_quality"]
    group = quality["suggested_group"]
    quality = ShuffleQuality(**quality | {"suggested_group": GroupSize(**group) if group else None})
    return Config(
        strategy=options["strategy"],
        given={
            name: Given(value=str(options[name]), origin=origin) for name, origin in options.origins.items()
        },
        data=Data(**data | {"fields": {name: (dtype, shape) for name, dtype, shape in data["fields"]}}),
        order=Order(
            **order
            | {
                "allowed_ranks": tuple(order["allowed_ranks"]),
                "ends": tuple(EpochEnd(**end) for end in order["ends"]),
                "mixture": _mixture(order["mixture"]) if order["mixture"] is not None else None,
                "local": Locality(**order["local"]) if order["local"] is not None else None,
                "streaming": Streaming(**order["streaming"]) if order["streaming"] is not None else None,
                "shuffle_quality": quality,
            },
        ),
        index=Index(**found["index"]),
        reading=Reading(**found["reading"]),
        memory=Memory(**found["memory"]),
        tiers=_tiers(found["tiers"]) if found["tiers"] is not None else None,
        store=_store(found["store"]) if found["store"] is not None else None,
        linked_nodes=found["linked_nodes"],
        per_sample=per_sample,
        fallbacks=tuple(Fallback(**fallback) for fallback in found["fallbacks"]),
        now=Now(**found["now"]),
    )


def _mixture(found: Mapping[str, Any]) -> Mixture:
    sources = tuple(MixedSource(**source) for source in found["sources"])
    return Mixture(stop=found["stop"], sources=sources)


def _store(found: Mapping[str, Any]) -> StoreFacts:
    probe = StoreProbe(**found["probe"]) if found["probe"] is not None else None
    return StoreFacts(**{**found, "probe": probe, "ucx_transports": tuple(found["ucx_transports"] or ())})


def _tiers(found: Mapping[str, Any]) -> Tiers:
    levels = tuple(TierLevel(**level) for level in found["levels"])
    forecast = tuple(
        EpochForecast(source=epoch["source"], levels=tuple(epoch["levels"])) for epoch in found["forecast"]
    )
    why = found["no_copies"]
    no_copies = NoCopies(**why) if why is not None else None
    return Tiers(**dict(found) | {"levels": levels, "forecast": forecast, "no_copies": no_copies})
