"""Workloads: published jobs as data, and data sets made to their measure.

How, in order: `load` reads a file of the directory `workloads` and checks every key;
`Workload.scaled` makes it smaller by one factor, by the rules of `scaling.toml`; `prepare` has the
data set generated (`forebay.tools.bench.generate`), or finds it again, and says what a run of it
needs: paths, batch, compute time.

A number without a source is an error. What a publication does not say is absent, never guessed: a
workload without a compute time has none.
"""

from __future__ import annotations

import importlib.resources
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._core import FormatError, option_error
from forebay.tools.bench.sample import ITEM_BYTES, MIN_SAMPLE_BYTES, Field, Sample
from forebay.tools.bench.validated_toml import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.resources.abc import Traversable

__all__ = [
    "CONTAINERS",
    "Benchmark",
    "Client",
    "Prepared",
    "Scaled",
    "Scaling",
    "Variant",
    "Workload",
    "load",
    "load_file",
    "names",
    "prepare",
    "scaling",
]

CONTAINERS = ("lmdb", "hdf5", "tfrecord", "npz")
RECORDS = ("raw", "caffe-datum")


@dataclass(frozen=True, slots=True)
class Variant:
    """One published way to run a workload: a machine, a network, an accelerator."""

    name: str
    ranks: int | None
    """Ranks of the published run; None where the publication leaves that open."""
    batch_samples: int
    """Samples per rank and step, at that number of ranks."""
    step_seconds: float | None
    """Compute time per rank and step; None where the publication does not say."""


@dataclass(frozen=True, slots=True)
class Client:
    """The published machine's nodes."""

    node_ranks: int
    node_memory_bytes: int | None
    """What a node can cache."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What the publication asks of a run; None where it does not."""

    utilisation_line: float | None
    """Accelerator utilisation that counts as passed."""
    reader_threads: int | None
    epochs: int | None
    data_to_memory: float | None
    """Least ratio of the data to the memory of all nodes."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A workload made smaller."""

    samples: int
    files: int
    node_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The rules that hold for all workloads."""

    scaled: tuple[str, ...]
    fixed: tuple[str, ...]
    keep: tuple[tuple[str, str], ...]
    """Ratios to keep, and why."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A published job."""

    name: str
    about: str
    sample: Sample
    samples: int
    files: int
    container: str
    variants: tuple[Variant, ...]
    client: Client | None
    benchmark: Benchmark
    least_steps: int
    """Below this a run measures little but its start."""
    sources: Mapping[str, str]
    """Key of a number, such as ``sample.bytes``, to where it comes from."""

    def variant(self, name: str | None = None) -> Variant:
        """Return the variant of that name; the first by default.

        Raises
        ------
        OptionError
            If there is none of that name.
        """
        for variant in self.variants:
            if name in (None, variant.name):
                return variant
        found = ", ".join(variant.name for variant in self.variants)
        raise option_error(f"workload {self.name}: no variant {name!r}; there are {found}")

    def scaled(self, scale: float, container: str | None = None) -> Scaled:
        """Shrink samples, files and memory by one factor.

        Files keep their samples as long as more than one is left; then the last one gets shorter.
        An LMDB is one file, and a file of npz holds one sample, whatever the workload's own
        container does.

        Raises
        ------
        OptionError
            If the scale is not within (0, 1], or the container is unknown.
        """
        if not 0 < scale <= 1:
            raise option_error(f"workload {self.name}: expected a scale above 0 and up to 1, found {scale:g}")
        container = container or self.container
        if container not in CONTAINERS:
            raise option_error(
                f"workload {self.name}: no container {container!r}; there are {', '.join(CONTAINERS)}"
            )
        samples = max(1, round(self.samples * scale))
        files = min(samples, max(1, round(self.files * scale)))
        if container == "lmdb":
            files = 1
        elif container == "npz":
            files = samples
        memory = self.client.node_memory_bytes if self.client else None
        return Scaled(samples, files, None if memory is None else max(1, round(memory * scale)))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A data set on disk, and how to run it."""

    name: str
    variant: str
    scale: float
    seed: int
    directory: Path
    paths: tuple[Path, ...]
    """What a reader opens: the LMDB directory, or all files in the order of their samples."""
    format: str
    samples: int
    sample_bytes: int
    """Mean size of a sample, without what the container adds."""
    dataset_bytes: int
    """Size of all files."""
    batch_size: int
    """Samples per rank and step."""
    compute_seconds: float
    """Compute time per rank and step; 0 where none is published."""
    node_memory_bytes: int | None
    """What a node may cache, scaled as the data is; None where it is not published."""
    utilisation_line: float | None
    """Accelerator utilisation that counts as passed."""
    made: bool
    """False: it was there already."""
    notes: tuple[str, ...]
    """What one must know to read the numbers of a run."""

    @property
    def path(self) -> Path:
        """The path of the data set if it is one, else the directory that holds its files."""
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent


def names() -> list[str]:
    """Return the names of all workloads."""
    return sorted(
        one.name.removesuffix(".toml") for one in _directory().iterdir() if one.name.endswith(".toml")
    )


def load(name: str) -> Workload:
    """Read one of the workloads that come with the package.

    Raises
    ------
    OptionError
        If there is none of that name.
    FormatError
        If its file is not as expected.
    """
    if name not in names():
        raise option_error(f"workload: there is none called {name!r}", f"there are {', '.join(names())}")
    return load_file(_directory() / f"{name}.toml")


def load_file(path: Traversable | Path) -> Workload:
    """Read a workload file; its name must be the workload's.

    Raises
    ------
    FormatError
        If it is not as expected; the message names file and key.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"workload {path}: expected TOML, found: {error}") from error
    top = Table(values, str(path))
    name = top.text("name")
    if f"{name}.toml" != path.name:
        top.refuse("name", "the name of the file without .toml", name)
    about = top.text("about")
    sample = _sample(top.table("sample"))
    dataset = top.table("dataset")
    samples, files = dataset.integer("samples"), dataset.integer("files")
    if files > samples:
        dataset.refuse("files", f"at most as many as samples ({samples})", files)
    container = dataset.choice("container", CONTAINERS)
    dataset.finish()
    variants = tuple(_variant(one) for one in top.tables("variants"))
    if len({variant.name for variant in variants}) < len(variants):
        top.refuse("variants", "names that differ", [variant.name for variant in variants])
    client = _client(top.table("client")) if "client" in values else None
    benchmark = _benchmark(top.table("benchmark", optional=True))
    rules = top.table("scaling")
    least_steps = rules.integer("least_steps")
    rules.finish()
    sources = _sources(top, values)
    top.finish()
    return Workload(
        name, about, sample, samples, files, container, variants, client, benchmark, least_steps, sources
    )


def scaling() -> Scaling:
    """Return the rules of scaling down, which are the same for all workloads."""
    path = importlib.resources.files("forebay.tools.bench") / "scaling.toml"
    top = Table(tomllib.loads(path.read_text("utf-8")), str(path))
    keep = tuple((one.text("ratio"), one.text("why")) for one in top.tables("keep"))
    rules = Scaling(top.texts("scaled"), top.texts("fixed"), keep)
    top.finish()
    return rules


def prepare(
    name: str,
    scale: float,
    directory: Path,
    container: str | None = None,
    *,
    variant: str | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Prepared:
    """Make a workload's data set, or find it.

    Parameters
    ----------
    name
        Workload, as in `names`.
    scale
        Factor on samples, files and memory, within (0, 1].
    directory
        Where data sets are kept; each gets a directory of its own in it.
    container
        Write this one instead of the published: ``lmdb`` makes any workload readable for today's
        engine.
    variant
        Which published run gives batch and compute time. Default: the first.
    seed
        Equal seeds give equal bytes.
    progress
        Called with (what, samples written, samples in all).

    Raises
    ------
    OptionError
        If name, scale, container or variant are none.
    StorageError
        If there is not enough room, or the place is taken by something else.
    """
    from forebay.tools.bench import generate

    workload = load(name)
    chosen = workload.variant(variant)
    container = container or workload.container
    scaled = workload.scaled(scale, container)
    recipe = generate.Recipe(name, container, scaled.samples, scaled.files, workload.sample, seed)
    found = generate.generate(recipe, directory, progress)
    return Prepared(
        name=name,
        variant=chosen.name,
        scale=scale,
        seed=seed,
        directory=found.directory,
        paths=found.paths,
        format=container,
        samples=scaled.samples,
        sample_bytes=round(found.sample_bytes / scaled.samples),
        dataset_bytes=found.file_bytes,
        batch_size=chosen.batch_samples,
        compute_seconds=chosen.step_seconds or 0.0,
        node_memory_bytes=scaled.node_memory_bytes,
        utilisation_line=workload.benchmark.utilisation_line,
        made=found.made,
        notes=tuple(_notes(workload, chosen, scaled, scale, container)),
    )


def _notes(
    workload: Workload, variant: Variant, scaled: Scaled, scale: float, container: str
) -> Iterator[str]:
    if scale < 1:
        yield (
            f"{workload.name} at scale {scale:g}: {scaled.samples:,} of {workload.samples:,} samples; "
            "sample, batch per rank and step are the published ones"
        )
        yield f"ranks, nodes, targets and links must shrink by the same {scale:g} for the ratios to hold"
    if container != workload.container:
        yield f"written as {container}; the publication used {workload.container} in {workload.files:,} files"
    if scaled.node_memory_bytes is not None:
        yield f"a node caches at most {scaled.node_memory_bytes / 2**20:,.0f} MiB at this scale"
    if variant.step_seconds is None:
        yield "no compute time is published: it is 0 here"
    most_ranks = scaled.samples // (workload.least_steps * variant.batch_samples)
    if most_ranks == 0:
        yield (
            f"an epoch has {scaled.samples // variant.batch_samples} steps of {variant.batch_samples} samples on one rank, "
            f"fewer than {workload.least_steps}: run several epochs, or a larger scale"
        )
    elif most_ranks < (variant.ranks or math.inf):
        yield f"up to {most_ranks:,} ranks have at least {workload.least_steps} steps per epoch"


def _directory() -> Traversable:
    return importlib.resources.files("forebay.tools.bench") / "workloads"


def _sample(table: Table) -> Sample:
    size = table.integer("bytes", least=MIN_SAMPLE_BYTES)
    deviation = table.integer("deviation_bytes", least=0, default=0)
    record = table.choice("record", RECORDS)
    fields = []
    for one in table.tables("fields"):
        shape = one.integers("shape") if "shape" in one else None
        fields.append(Field(one.text("name"), one.choice("dtype", tuple(ITEM_BYTES)), shape))
        one.finish()
    sizes = [field.bytes for field in fields]
    fixed = sum(size for size in sizes if size is not None)
    open_fields = sizes.count(None)
    if open_fields > 1 or (open_fields and (sizes[-1] is not None or ITEM_BYTES[fields[-1].dtype] != 1)):
        table.refuse(
            "fields", "only the last one, of uint8, without a shape", [field.name for field in fields]
        )
    if not open_fields and (deviation or fixed != size):
        table.refuse("fields", f"{size} bytes in all, and no deviation where every shape is given", fixed)
    if fixed > size:
        table.refuse("fields", f"at most {size} bytes", fixed)
    if record == "caffe-datum" and (
        len(fields) != 1 or fields[0].dtype != "uint8" or len(fields[0].shape or ()) != 3
    ):
        table.refuse("fields", "one image of uint8 with three dimensions in a caffe-datum", len(fields))
    table.finish()
    return Sample(size, deviation, record, tuple(fields))


def _variant(table: Table) -> Variant:
    name = table.text("name")
    ranks = table.integer("ranks") if "ranks" in table else None
    if ("batch_samples" in table) == ("global_batch_samples" in table):
        table.refuse("batch_samples", "either this or global_batch_samples", "both or none")
    if "batch_samples" in table:
        batch = table.integer("batch_samples")
    else:
        whole = table.integer("global_batch_samples")
        if ranks is None or whole % ranks:
            table.refuse("global_batch_samples", "a multiple of the ranks", f"{whole} and {ranks}")
        batch = whole // ranks
    seconds = None
    if "step_seconds" in table:
        seconds = table.number("step_seconds")
    if "sample_seconds" in table:
        if seconds is not None:
            table.refuse("sample_seconds", "either this or step_seconds", "both")
        seconds = table.number("sample_seconds") * batch
    table.finish()
    return Variant(name, ranks, batch, seconds)


def _client(table: Table) -> Client:
    memory = table.integer("node_memory_bytes") if "node_memory_bytes" in table else None
    client = Client(table.integer("node_ranks"), memory)
    table.finish()
    return client


def _benchmark(table: Table) -> Benchmark:
    line = table.number("utilisation_line") if "utilisation_line" in table else None
    if line is not None and line > 1:
        table.refuse("utilisation_line", "at most 1", line)
    found = Benchmark(
        line,
        table.integer("reader_threads") if "reader_threads" in table else None,
        table.integer("epochs") if "epochs" in table else None,
        table.number("data_to_memory") if "data_to_memory" in table else None,
    )
    table.finish()
    return found


def _sources(top: Table, values: dict[str, Any]) -> dict[str, str]:
    """Check that each number has a source and each source a number."""
    table = top.table("sources")
    numbers = set()
    for section, content in values.items():
        for one in content if isinstance(content, list) else [content]:
            if isinstance(one, dict):
                numbers |= {
                    f"{section}.{key}" for key, value in one.items() if isinstance(value, int | float)
                }
    for key in sorted(numbers - set(table.keys)):
        table.refuse(key, "the source of this number", "none")
    for key in sorted(set(table.keys) - numbers):
        table.refuse(key, "a number that the file has", "none")
    return {key: table.text(key) for key in table.keys}
