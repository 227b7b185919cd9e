"""``forebay simulate``: what a job of any size would do to its file system, in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from forebay.cli.commands import as_json
from forebay.cli.numbers import COUNT, NUMBER, Finite, byte_count
from forebay_lab.cli.bench import STRATEGIES as _OF_BENCH
from forebay_lab.cli.numbers import counts, seconds
from forebay_lab.cli.shown import show_result

STRATEGIES = _OF_BENCH.rpartition(",")[2]


@click.command()
@click.argument("dataset", nargs=-1)
@click.option(
    "--workload", metavar="NAME", help="Instead of DATASET: a published workload (docs/workloads.md)."
)
@click.option(
    "--like",
    metavar="RESULT",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Instead of DATASET: the job of a result of forebay bench --json, compared with what was measured.",
)
@click.option(
    "--variant", metavar="NAME", help="Published variant of the workload, for example h100.  [default: first]"
)
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=Finite(above=0),
    help="Factor on the size of the workload.",
)
@click.option(
    "--container",
    metavar="NAME",
    help="Format of the workload: lmdb, hdf5, tfrecord, npz.  [default: the published one]",
)
@click.option(
    "--ranks",
    default="4",
    show_default=True,
    metavar="N,N,...",
    callback=counts,
    help="Numbers of ranks, each of which is simulated.",
)
@click.option("--ranks-per-node", type=COUNT, help="Ranks of a node.  [default: the workload's, or all]")
@click.option(
    "--pfs",
    default="lustre-hdd",
    show_default=True,
    metavar="PRESET",
    help="The file system: a preset (forebay pfs presets), or a TOML file.",
)
@click.option("--targets", type=COUNT, help="Number of storage targets.  [default: the preset's]")
@click.option(
    "--client",
    default="lustre",
    show_default=True,
    type=click.Choice(["lustre", "linux"]),
    help="Whose read-ahead nodes have: that of Lustre, or of the kernel, as for a local drive.",
)
@click.option(
    "--strategies",
    default=STRATEGIES,
    show_default=True,
    metavar="LIST",
    help="Comma-separated rows, each strategy or strategy@order; ladder: the rows of the LMDBIO paper.",
)
@click.option("--order", default="group", show_default=True, help="Order of rows without @order.")
@click.option(
    "--ids",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Instead of --order: sample ids, an array of numpy.save with a row for each epoch, or one for all.",
)
@click.option("--batch-size", type=COUNT, help="Samples per rank and step.  [default: the workload's, or 32]")
@click.option("--global-batch", type=COUNT, help="Samples of all ranks per step, instead of --batch-size.")
@click.option(
    "--steps", type=COUNT, help="Steps to simulate.  [default: all, 64 of rows that take page faults]"
)
@click.option("--epochs", default=1, show_default=True, type=COUNT, help="Epochs to simulate.")
@click.option(
    "--compute",
    metavar="TIME",
    callback=seconds,
    help="Compute time of a step, for example 5ms.  [default: the workload's, or none]",
)
@click.option("--seed", default=0, show_default=True, type=NUMBER, help="Seed of the shuffles.")
@click.option(
    "--seeds", default=9, show_default=True, type=COUNT, help="Runs per row, which differ by noise."
)
@click.option(
    "--node-memory", metavar="SIZE", callback=byte_count, help="Memory of each node.  [default: 128GiB]"
)
@click.option(
    "--tier",
    "tiers",
    metavar="PRESET:SIZE",
    multiple=True,
    help="A storage tier of each node, for example local-nvme:200GiB, or tmpfs:20GiB for memory; may be a TOML file; repeat.",
)
@click.option(
    "--fetch",
    type=click.Choice(["whole", "none"]),
    help="Of programs with --tier: what of the files forebay run reads.  [default: what the program has read]",
)
@click.option(
    "--stage", is_flag=True, help="Of programs with --tier: copy all files, then start the program."
)
@click.option(
    "--frozen",
    is_flag=True,
    help="Of programs with --tier: opens of files with a copy do not reach the source.",
)
@click.option("--cores", type=COUNT, help="Cores of each node.  [default: one for each rank]")
@click.option(
    "--costs",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Processor costs that forebay costs has written.  [default: those of a virtual machine]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write an HTML report to this path.",
)
@as_json
def command(
    dataset: tuple[str, ...],
    workload: str | None,
    like: Path | None,
    variant: str | None,
    scale: float,
    container: str | None,
    ranks: tuple[int, ...],
    ranks_per_node: int | None,
    pfs: str,
    targets: int | None,
    client: str,
    strategies: str,
    order: str,
    batch_size: int | None,
    global_batch: int | None,
    compute: float | None,
    ids: Path | None,
    tiers: tuple[str, ...],
    fetch: str | None,
    costs: Path | None,
    report: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict the I/O of a job of any size from a model of its file system, without reading data.

    DATASET is what `forebay.open` takes; only its index is read. The engine's own orders, plans and
    decisions run in virtual time against the model of `forebay pfs`. docs/simulate.md explains the
    columns, and what the model leaves out.
    """
    if bool(dataset) + (workload is not None) + (like is not None) != 1:
        raise click.UsageError("expected one of DATASET, --workload NAME and --like RESULT")
    if like is not None:
        return _like(like, costs, options["seeds"], as_json=as_json, report=report)
    if ids is not None and _is_given("order"):
        raise click.UsageError("expected --order or --ids, found both")
    if batch_size is not None and global_batch is not None:
        raise click.UsageError("expected --batch-size or --global-batch, found both")
    from forebay.cli.output import progress
    from forebay_lab import write_page
    from forebay_lab.bench import baselines as programs
    from forebay_lab.bench.strategies import parse
    from forebay_lab.pfs.start import Wanted
    from forebay_lab.simulate import Request, simulate, table
    from forebay_lab.simulate.costs import read as read_costs
    from forebay_lab.simulate.given_ids import GIVEN, check_rows, read_ids
    from forebay_lab.simulate.request import FETCHES, rules_of
    from forebay_lab.simulate.source import of_dataset, of_workload
    from forebay_lab.simulate.tiers import parse_tiers

    if report is not None:
        write_page.check(report)
    with progress() as show:
        if workload is None:
            source = of_dataset(dataset, show)
        else:
            source = of_workload(workload, variant, scale, container)
    if batch_size is None and global_batch is None:
        batch_size, global_batch = source.batch_size, source.global_batch
    spec = Wanted.named(pfs, **({} if targets is None else {"targets": targets})).resolve()
    request = Request(
        places=source.places,
        dataset=source.dataset,
        spec=spec,
        rules=rules_of(client, spec),
        ranks=ranks,
        ranks_per_node=ranks_per_node or source.node_ranks or max(ranks),
        batch_size=batch_size,
        global_batch=global_batch,
        compute_seconds=compute,
        sample_seconds=source.sample_seconds,
        costs=None if costs is None else read_costs(costs),
        workload=source.workload,
        tiers=parse_tiers(tiers),
        fetch=fetch or FETCHES[0],
        ids=None if ids is None else read_ids(ids, source.places.samples),
        left_out=source.left_out,
        command=("forebay", *sys.argv[1:]),
        **options,
    )
    if ids is None:
        rows = parse(strategies, order, programs.find(()))
    else:
        rows = parse(strategies, GIVEN, programs.find(()), more_orders=(GIVEN,))
        check_rows(rows)
    with progress() as show:
        result = simulate(request, rows, show)
    show_result(result, table, as_json=as_json, report=report)
    return 0 if any(row["status"] == "ok" for row in result["rows"]) else 1


def _is_given(name: str) -> bool:
    """Whether an option stands on the command line."""
    return click.get_current_context().get_parameter_source(name) != ParameterSource.DEFAULT


_WITH_LIKE = ("like", "costs", "seeds", "report", "as_json")
"""Options that go with ``--like``; all others are in the result."""


def _like(like: Path, costs: Path | None, seeds: int, *, as_json: bool, report: Path | None) -> int:
    for one in click.get_current_context().command.params:
        if one.name and _is_given(one.name) and one.name not in _WITH_LIKE:
            raise click.UsageError(f"--like: the job is that of the result: leave {one.opts[0]} out")
    from forebay.cli.output import progress
    from forebay_lab import write_page
    from forebay_lab.simulate import like as bench_result
    from forebay_lab.simulate import like_table
    from forebay_lab.simulate.costs import Costs
    from forebay_lab.simulate.costs import read as read_costs

    if report is not None:
        write_page.check(report)
    result = bench_result.read(like)
    request = bench_result.request_like(
        result, Costs.default() if costs is None else read_costs(costs), seeds
    )
    with progress() as show:
        bench_result.add_simulated(result, request, show)
    show_result(result, like_table, as_json=as_json, report=report)
    return 0 if any((row["simulated"] or {}).get("median") for row in result["rows"]) else 1
