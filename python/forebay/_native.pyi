"""The Rust core as Python sees it. The public API is in the modules around it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "DEBUG_BUILD",
    "ENDPOINT_BYTES",
    "FORMATS",
    "MAX_NODES",
    "SCHEMAS",
    "VERSION",
    "Dataset",
    "Engine",
    "HandshakeKey",
    "Lease",
    "Listener",
    "OrderState",
    "RunSession",
    "Siblings",
    "Watchdog",
    "check_decoder",
    "check_option",
    "check_parameters",
    "clear_tiers",
    "compare_tier",
    "describe_sidecar",
    "drop_copies_of_tier",
    "limit",
    "option_words",
    "run_usage",
    "runtime_directory",
    "serve_store",
    "serve_tiers",
    "sidecar_directory",
    "stop_store",
    "stop_tiers",
    "store_status",
    "stored_tier",
    "tier_forecast",
    "tiers_usage",
    "verify_tier",
]

VERSION: str
DEBUG_BUILD: bool
ENDPOINT_BYTES: int
MAX_NODES: int
FORMATS: tuple[str, ...]
SCHEMAS: tuple[str, ...]

# What is being done, how much is done, how much there is to do.
_Progress: TypeAlias = Callable[[str, int, int], object]

@final
class Dataset:
    def __new__(
        cls,
        paths: list[str],
        *,
        database: str | None = None,
        schema: str = "auto",
        format: str | None = None,
        fields: list[str] = ...,
        raw: str | None = None,
        tokens: str | None = None,
        sample_axis: str = "auto",
        manifest: tuple[str, str] | None = None,
        follow_symlinks: bool = False,
        decode: Mapping[str, Mapping[str, Any]] | None = None,
        nulls: str = "raise",
    ) -> Dataset: ...
    @property
    def format(self) -> str: ...
    @property
    def paths(self) -> list[str]: ...
    # Names of the classes in the order of their labels; empty where the files name none.
    def classes(self) -> list[str]: ...
    # A warning of files that were given more than once.
    def repeated_files(self) -> str | None: ...
    @property
    def fingerprint(self) -> str: ...
    # The samples with these ids, each once, in this order, as a separate dataset.
    def select(self, ids: npt.NDArray[np.int64]) -> Dataset: ...
    def load_index(self, *, progress: _Progress | None = None) -> None: ...
    def build_index(self, *, beside: bool = False, progress: _Progress | None = None) -> dict[str, Any]: ...
    # Whether the index is loaded, so that the length and the fields are known.
    def is_loaded(self) -> bool: ...
    def __len__(self) -> int: ...
    # Samples of the files, selected or not.
    def records(self) -> int: ...
    def fields(self) -> list[tuple[str, str, tuple[int, ...] | None]]: ...
    # Whether they are opaque records, which `dataset[i]` returns as bytes.
    def are_records(self) -> bool: ...
    def sample(self, index: int, *, seed: int = 0, epoch: int = 0) -> dict[str, Any]: ...
    # Field → array, list of arrays, or with `ragged` values and offsets.
    def read(
        self, ids: npt.NDArray[np.int64], *, threads: int | None = None, ragged: bool = False
    ) -> dict[str, Any]: ...
    def samples(self, ids: npt.NDArray[np.int64], *, threads: int | None = None) -> list[Any]: ...
    def extents(self, index: int) -> list[tuple[str, int, int]]: ...
    def inspect(self) -> dict[str, Any]: ...
    def default_order(
        self, *, ranks: int, batch_size: int, epochs: int | None = None
    ) -> tuple[dict[str, Any] | None, str | None]: ...
    def check_sums(self, *, progress: _Progress | None = None) -> None: ...
    def verify(
        self, *, threads: int = 2, listed: int | None = None, progress: _Progress | None = None
    ) -> dict[str, Any]: ...

# A batch: its fields, ids, and epoch and step.
_Taken: TypeAlias = tuple[dict[str, Any], npt.NDArray[np.int64], tuple[int, int]]

# Writes and checks the states of one loader; outlives its engine.
@final
class OrderState:
    def at(self, epoch: int, step: int) -> dict[str, Any]: ...
    def behind(self, position: object) -> dict[str, Any]: ...
    # Epoch, step, and the lanes and group sizes that the loader has to adopt; None where it has
    # them.
    def resume(self, state: object) -> tuple[int, int, dict[str, int] | None]: ...

@final
class Engine:
    def __new__(
        cls,
        dataset: Dataset,
        options: Mapping[str, Any],
        *,
        launcher: str | None = None,
        tier_daemon: Sequence[str] = ...,
        links: Mapping[str, Any] | None = None,
        listener: Listener | None = None,
        progress: _Progress | None = None,
    ) -> Engine: ...
    @property
    def steps(self) -> int: ...
    @property
    def last_epoch(self) -> int: ...
    def config(self) -> dict[str, Any]: ...
    # Samples of the dataset.
    @property
    def samples(self) -> int: ...
    # Batch buffers of each rank.
    @property
    def batch_buffers(self) -> int: ...
    # Cores that this rank may use: its part of those of the node.
    @property
    def cores(self) -> int: ...
    @property
    def order_state(self) -> OrderState: ...
    def start(self, epoch: int, step: int) -> int: ...
    # Appends the batch to `taken`: a signal handler that raises right after the call would lose a
    # value that is returned. Appends nothing at the end of the epoch.
    def next(self, iteration: int, taken: list[_Taken]) -> None: ...
    # Whether `next` would return at once.
    def is_ready(self, iteration: int) -> bool: ...
    def leave(self, iteration: int | None = None) -> None: ...
    def close(self) -> None: ...
    def give_order(self, epoch: int, ids: npt.NDArray[np.int64]) -> None: ...
    def set_stagger(self, groups: int | None) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def bad_samples(self) -> list[tuple[int, str]]: ...

@final
class Lease: ...

@final
class HandshakeKey:
    def __new__(cls, job: str, loader: str, secret: bytes) -> HandshakeKey: ...
    def proof(self, first: bytes, nonce: bytes, *, accepting: bool) -> bytes: ...
    def is_proved(self, proof: bytes, first: bytes, nonce: bytes, *, accepting: bool) -> bool: ...

@final
class Listener:
    def __new__(cls, interface: str | None = None) -> Listener: ...
    @property
    def endpoint(self) -> bytes: ...
    def close(self) -> None: ...

@final
class Siblings:
    def __new__(cls, variable: str, rank: int) -> Siblings: ...
    def ended(self) -> list[tuple[int, int]]: ...

@final
class Watchdog:
    def __new__(
        cls,
        what: str,
        warn_after_s: float,
        *,
        end_after_s: float | None = None,
        rank: tuple[str, int] | None = None,
    ) -> Watchdog: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_exception: object) -> None: ...

def limit(
    path: str,
    *,
    block_bytes: int,
    seconds: float,
    kind: str,
    threads: int = 1,
    cold: bool = False,
    pool_bytes: int = 0,
) -> dict[str, Any]: ...

# What is wrong with a decoder of a field; None if nothing is.
def check_decoder(facts: Mapping[str, Any]) -> str | None: ...

# Raises where the option `name` may not be `value`, which came from `origin`; `shown` is the value
# as the user wrote it.
def check_option(origin: str, name: str, value: object, shown: object = ...) -> None: ...

# The same for parameters of an order, a strategy or a tier, and those that do not go together.
def check_parameters(
    kind: str, prefix: str, values: dict[str, Any], shown: dict[str, Any] | None = None
) -> None: ...
def option_words(name: str) -> list[str]: ...
def runtime_directory(*, make: bool) -> Path: ...

# The tier daemon; what it knows is JSON.
def serve_store(memory_bytes: int | None, idle_s: float, listening: Callable[[bool], object]) -> None: ...
def store_status() -> str | None: ...
def stop_store() -> tuple[int, int] | None: ...
def serve_tiers(idle_s: float, listening: Callable[[], object]) -> None: ...
def tiers_usage() -> str | None: ...
def clear_tiers(
    tiers: Sequence[Path], *, source: Path | None = None, progress: _Progress | None = None
) -> int: ...
def stop_tiers() -> int | None: ...
def stored_tier(path: Path) -> str | None: ...
def verify_tier(path: Path, *, progress: _Progress | None = None) -> str | None: ...
def compare_tier(path: Path, *, progress: _Progress | None = None) -> str | None: ...
def drop_copies_of_tier(path: Path, sources: Sequence[str], files: Sequence[int]) -> None: ...
def sidecar_directory() -> Path | None: ...
def describe_sidecar(path: Path) -> str | None: ...

# What all open runs of this user's daemon have done; None without a daemon (docs/metrics.md).
def run_usage() -> list[dict[str, Any]] | None: ...

# A run of `forebay run`: its table is for FOREBAY_TABLE. `tiers` are those of a loader; `daemon`
# is the command that starts the tier daemon.
@final
class RunSession:
    def __new__(
        cls,
        *,
        tiers: Sequence[Mapping[str, Any]],
        sources: Sequence[str],
        frozen: bool,
        check: bool,
        fetch: str,
        keep: bool,
        daemon: Sequence[str],
    ) -> RunSession: ...
    @property
    def table(self) -> Path: ...
    # What the user should know.
    @property
    def warnings(self) -> list[str]: ...
    # Begins to copy all sources.
    def stage(self) -> None: ...
    # How far that is: "files", "bytes", "copied_files", "copied_bytes", "scanned_files",
    # "scanned_bytes", "is_done", and "problem" with the first file that could not be copied.
    def progress(self) -> dict[str, Any]: ...
    # See docs/metrics.md.
    def summary(self) -> dict[str, Any]: ...
    # How often another daemon took the place of one that had died. It counts from then on.
    @property
    def restarts(self) -> int: ...
    # Finishes the copies under way, or compares all if the run does that.
    def finish(self, within_s: float) -> None: ...
    def close(self) -> None: ...

# What an empty tier on each node would do for a run that was measured without one: whether copies
# pay, the bytes of a tier that holds all that a node reads, the source bytes of each epoch, and a
# bound of the share of time saved. Rates in bytes/s over all nodes, computing per epoch.
def tier_forecast(
    *,
    order: str,
    group_samples: int | None,
    samples: int,
    global_batch: int,
    nodes: int,
    data_bytes: int,
    tier_bytes: int,
    epochs: int,
    source_rate: float,
    compute_s: float,
) -> dict[str, Any]: ...
