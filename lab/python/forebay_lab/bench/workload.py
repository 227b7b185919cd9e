"""Workloads: published jobs as data, and datasets made to their measure.

How, in order: `load` reads a file of the directory `workloads` and checks every key;
`Workload.scaled` makes it smaller by one factor, by the rules of `scaling.toml`; `prepare` has the
dataset generated (`forebay_lab.bench.generate`), or finds it again, and says what a run of it
needs: paths, batch, compute time.

A number without a source is an error. What a publication does not say is absent, never guessed: a
workload without a compute time has none.
"""

from __future__ import annotations

import importlib.resources
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._core import did_you_mean, option_error
from forebay_lab.bench.sample import ITEM_BYTES, Field, Sample
from forebay_lab.bench.workload_file import (
    SampleTable,
    ScalingFile,
    VariantTable,
    WorkloadFile,
    read,
    refuse,
)

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
    """A dataset on disk, and how to run it."""

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
        """The path of the dataset if it is one, else the directory that holds its files."""
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
        raise option_error(
            f"unknown workload {name!r}{did_you_mean(name, names())}", f"there are {', '.join(names())}"
        )
    return load_file(_directory() / f"{name}.toml")


def load_file(path: Traversable | Path) -> Workload:
    """Read a workload file; its name must be the workload's.

    Raises
    ------
    FormatError
        If it is not as expected; the message names file and key.
    """
    file, values = read(path, WorkloadFile)
    if f"{file.name}.toml" != path.name:
        refuse(path, "name", "the name of the file without .toml", file.name)
    samples, files = file.dataset.samples, file.dataset.files
    if files > samples:
        refuse(path, "dataset.files", f"at most as many as samples ({samples})", files)
    names = [variant.name for variant in file.variants]
    if len(set(names)) < len(names):
        refuse(path, "variants", "names that differ", names)
    client, benchmark = file.client, file.benchmark
    found = Workload(
        name=file.name,
        about=file.about,
        sample=_sample(path, file.sample),
        samples=samples,
        files=files,
        container=file.dataset.container,
        variants=tuple(
            _variant(path, f"variants[{number}]", one) for number, one in enumerate(file.variants)
        ),
        client=None if client is None else Client(client.node_ranks, client.node_memory_bytes),
        benchmark=Benchmark(
            benchmark.utilisation_line, benchmark.reader_threads, benchmark.epochs, benchmark.data_to_memory
        ),
        least_steps=file.scaling.least_steps,
        sources=file.sources,
    )
    _check_sources(path, file, values)
    return found


def scaling() -> Scaling:
    """Return the rules of scaling down, which are the same for all workloads."""
    rules, _ = read(importlib.resources.files("forebay_lab.bench") / "scaling.toml", ScalingFile)
    return Scaling(rules.scaled, rules.fixed, tuple((one.ratio, one.why) for one in rules.keep))


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
    """Make a workload's dataset, or find it.

    Parameters
    ----------
    name
        Workload, as in `names`.
    scale
        Factor on samples, files and memory, within (0, 1].
    directory
        Where datasets are kept; each gets a directory of its own in it.
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
    from forebay_lab.bench import generate

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
    return importlib.resources.files("forebay_lab.bench") / "workloads"


def _sample(path: Traversable | Path, table: SampleTable) -> Sample:
    fields = tuple(Field(one.name, one.dtype, one.shape) for one in table.fields)
    sizes = [field.bytes for field in fields]
    fixed = sum(size for size in sizes if size is not None)
    open_fields = sizes.count(None)
    expected: str | None = None
    found: object = [field.name for field in fields]
    if open_fields > 1 or (open_fields and (sizes[-1] is not None or ITEM_BYTES[fields[-1].dtype] != 1)):
        expected = "only the last one, of uint8, without a shape"
    elif not open_fields and (table.deviation_bytes or fixed != table.bytes):
        expected, found = f"{table.bytes} bytes in all, and no deviation where every shape is given", fixed
    elif fixed > table.bytes:
        expected, found = f"at most {table.bytes} bytes", fixed
    elif table.record == "caffe-datum" and (
        len(fields) != 1 or fields[0].dtype != "uint8" or len(fields[0].shape or ()) != 3
    ):
        expected, found = "one image of uint8 with three dimensions in a caffe-datum", len(fields)
    if expected is not None:
        refuse(path, "sample.fields", expected, found)
    return Sample(table.bytes, table.deviation_bytes, table.record, fields)


def _variant(path: Traversable | Path, key: str, table: VariantTable) -> Variant:
    batch, whole, ranks = table.batch_samples, table.global_batch_samples, table.ranks
    if (batch is None) == (whole is None):
        refuse(path, f"{key}.batch_samples", "either this or global_batch_samples", "both or none")
    if whole is not None:
        if ranks is None or whole % ranks:
            refuse(path, f"{key}.global_batch_samples", "a multiple of the ranks", f"{whole} and {ranks}")
        batch = whole // ranks
    assert batch is not None
    seconds = table.step_seconds
    if table.sample_seconds is not None:
        if seconds is not None:
            refuse(path, f"{key}.sample_seconds", "either this or step_seconds", "both")
        seconds = table.sample_seconds * batch
    return Variant(table.name, ranks, batch, seconds)


def _check_sources(path: Traversable | Path, file: WorkloadFile, values: Mapping[str, Any]) -> None:
    """Check that each number has a source and each source a number."""
    numbers = set()
    for section, content in values.items():
        for one in content if isinstance(content, list) else [content]:
            if isinstance(one, dict):
                numbers |= {
                    f"{section}.{key}" for key, value in one.items() if isinstance(value, int | float)
                }
    for key in sorted(numbers - file.sources.keys()):
        refuse(path, f"sources.{key}", "the source of this number", "none")
    for key in sorted(file.sources.keys() - numbers):
        refuse(path, f"sources.{key}", "a number that the file has", "none")
