"""``forebay bench``: strategies side by side on one dataset and its file system."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from forebay.cli.commands import as_json
from forebay.cli.numbers import COUNT, NUMBER, Finite, byte_count
from forebay_lab.cli.numbers import counts, seconds
from forebay_lab.cli.shown import show_result

if TYPE_CHECKING:
    from forebay_lab.bench.workload import Prepared

STRATEGIES = "pylmdb-skipping,pylmdb-contiguous,forebay"
DATA = Path("bench-data")

_RATE = re.compile(r"^(\d+(?:\.\d*)?|\.\d+)\s*([KMG]bit)$")
_BITS = {"Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}


def _time_scale(_: click.Context, __: click.Parameter, text: str) -> float | str:
    if text == "auto":
        return text
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise click.BadParameter(f"expected a number above 0 or auto, found {text!r}")
    return factor


def _rate(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    match = _RATE.match(text.strip())
    if match is None or not (rate := round(float(match[1]) * _BITS[match[2]])):
        raise click.BadParameter(f"expected a rate such as 10Gbit or 100Mbit, found {text!r}")
    return rate


@click.command()
@click.argument("dataset", nargs=-1)
@click.option("--workload", metavar="NAME", help="Generate and run a published workload (docs/workloads.md).")
@click.option(
    "--variant",
    metavar="NAME",
    help="Published variant of the workload, for example h100.  [default: first]",
)
@click.option(
    "--scale",
    default=0.001,
    show_default=True,
    type=Finite(above=0),
    help="With --workload: factor on the size of its data.",
)
@click.option(
    "--container",
    metavar="NAME",
    help="With --workload: format of its data: lmdb, hdf5, tfrecord, npz.  [default: the published one]",
)
@click.option(
    "--data",
    default=DATA,
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="With --workload: directory in which its data are generated and reused.",
)
@click.option("--ranks", default=4, show_default=True, type=COUNT, help="Number of ranks.")
@click.option("--nodes", default=1, show_default=True, type=COUNT, help="Number of nodes.")
@click.option(
    "--ranks-per-node",
    metavar="N,N,...",
    callback=counts,
    help="Ranks of each node, for example 5,3,1, instead of --ranks and --nodes.",
)
@click.option(
    "--node-emulation",
    default="auto",
    show_default=True,
    type=click.Choice(("auto", "namespaces", "environment")),
    help="How to emulate nodes; auto: namespaces if permitted, else environment.",
)
@click.option(
    "--world-size",
    type=COUNT,
    help="Read as the first ranks of a job of this size: the access pattern of a large job.",
)
@click.option(
    "--strategies",
    default=STRATEGIES,
    show_default=True,
    metavar="LIST",
    help="Comma-separated rows, each strategy or strategy@order; ladder: the rows of the LMDBIO paper.",
)
@click.option("--order", default="group", show_default=True, help="Order of engine rows without @order.")
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="FILE",
    help="Python file with your own baselines; repeat for several.",
)
@click.option("--batch-size", type=COUNT, help="Samples per rank and step.  [default: 32, or the workload's]")
@click.option(
    "--global-batch",
    type=COUNT,
    help="Samples of all ranks per step, a multiple of the ranks, instead of --batch-size.",
)
@click.option("--steps", type=COUNT, help="Maximum steps per epoch.  [default: all]")
@click.option("--epochs", default=1, show_default=True, type=COUNT, help="Epochs per run.")
@click.option(
    "--repetitions",
    default=3,
    show_default=True,
    type=COUNT,
    help="Runs per row; runs of all rows are interleaved.",
)
@click.option(
    "--compute",
    metavar="TIME",
    callback=seconds,
    help="Compute time of a step, for example 5ms.  [default: 0, or the workload's]",
)
@click.option("--seed", default=0, show_default=True, type=NUMBER, help="Seed of the shuffles.")
@click.option("--cold", is_flag=True, help="Drop the page caches before each run.")
@click.option(
    "--pfs", metavar="PRESET", help="Read the data through this emulated file system (forebay pfs presets)."
)
@click.option(
    "--time-scale",
    default="auto",
    show_default=True,
    metavar="K",
    callback=_time_scale,
    help="With --pfs: real seconds per model second.",
)
@click.option("--targets", type=COUNT, help="With --pfs: number of storage targets.  [default: the preset's]")
@click.option(
    "--tier",
    "tiers",
    metavar="PRESET",
    multiple=True,
    help="Mount an empty directory with this preset on each node, for {tier} in --environment and --wrapper.",
)
@click.option(
    "--environment",
    metavar="NAME:VARIABLE=VALUE",
    multiple=True,
    help="Set a variable for the ranks of rows strategy@order+NAME.",
)
@click.option(
    "--wrapper",
    "wrappers",
    metavar="NAME:COMMAND",
    multiple=True,
    help="Start the ranks of rows strategy@order+NAME through this command.",
)
@click.option(
    "--node-memory",
    metavar="SIZE",
    callback=byte_count,
    help="Limit memory and page cache of each node, 2GiB for example.  [default: those of the machine]",
)
@click.option(
    "--link-rate",
    metavar="RATE",
    callback=_rate,
    help="Limit the link of each node, 10Gbit for example.  [default: none]",
)
@click.option(
    "--launcher",
    default="auto",
    show_default=True,
    type=click.Choice(("auto", "mpi", "processes")),
    help="How to start the ranks.",
)
@click.option(
    "--timeout",
    default=900.0,
    show_default=True,
    type=Finite(1),
    help="Maximum seconds per run.",
)
@click.option(
    "--simulated",
    is_flag=True,
    help="Also simulate each measured row, and compare; with --cold and an emulated file system.",
)
@click.option(
    "--costs",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --simulated: processor costs that forebay costs has written.  "
    "[default: those of a virtual machine]",
)
@click.option("--skip-verify", is_flag=True, help="Skip the run of each row that verifies its samples.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write an HTML report to this path.",
)
@as_json
def command(
    dataset: tuple[str, ...],
    workload: str | None,
    scale: float,
    variant: str | None,
    container: str | None,
    data: Path,
    batch_size: int | None,
    global_batch: int | None,
    ranks: int,
    nodes: int,
    ranks_per_node: tuple[int, ...] | None,
    compute: float | None,
    strategies: str,
    order: str,
    baselines: tuple[str, ...],
    environment: tuple[str, ...],
    wrappers: tuple[str, ...],
    report: Path | None,
    simulated: bool,
    costs: Path | None,
    skip_verify: bool,
    timeout: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare strategies on real ranks and print where the time of each goes.

    DATASET is what `forebay.open` takes, or files that a baseline reads; --workload generates one.
    Each row runs once for verification, then --repetitions times, interleaved with the other rows.
    docs/bench.md explains the columns.
    """
    if bool(dataset) == (workload is not None):
        raise click.UsageError("expected either DATASET or --workload NAME")
    if report is not None and not report.absolute().parent.is_dir():
        raise click.UsageError(f"--report {report}: its directory is not there")
    if costs is not None and not simulated:
        raise click.UsageError("--costs is for simulated rows: add --simulated")
    if simulated and not options["cold"]:
        raise click.UsageError(
            "--simulated: expected --cold, as a simulated run begins with empty page caches"
        )
    from forebay.cli.output import progress
    from forebay_lab import write_page
    from forebay_lab.bench import baselines as programs
    from forebay_lab.bench import facts, table
    from forebay_lab.bench.runner import bench
    from forebay_lab.bench.settings import Settings
    from forebay_lab.bench.strategies import parse
    from forebay_lab.bench.surroundings import parse_surroundings
    from forebay_lab.ranks.launch import terminations_as_interrupts
    from forebay_lab.simulate.costs import Costs
    from forebay_lab.simulate.costs import read as read_costs
    from forebay_lab.simulate.like import simulate_like

    if report is not None:
        write_page.check(report)
    given = click.get_current_context().get_parameter_source
    if ranks_per_node is not None:
        if {given("ranks"), given("nodes")} != {ParameterSource.DEFAULT}:
            raise click.UsageError("expected --ranks-per-node or --ranks and --nodes, found both")
        if min(ranks_per_node) < 1:
            raise click.UsageError(
                f"--ranks-per-node: expected numbers of at least 1, found {min(ranks_per_node)}"
            )
        ranks, nodes = sum(ranks_per_node), len(ranks_per_node)
    if options["pfs"] is None:
        for name in ("time_scale", "targets"):
            if given(name) != ParameterSource.DEFAULT:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is for an emulated file system: name it with --pfs"
                )
    if global_batch is not None:
        batch_size = _share(global_batch, batch_size, options["world_size"] or ranks)
    rows = parse(strategies, order, programs.find(baselines), parse_surroundings(environment, wrappers))
    of_machine = Costs.default() if costs is None else read_costs(costs)
    with progress() as show, terminations_as_interrupts():
        prepared: Prepared | None = None
        if workload is not None:
            from forebay_lab.bench.workload import prepare

            prepared = prepare(workload, scale, data, container, variant=variant, progress=show)
            dataset = tuple(str(path) for path in prepared.paths)
        settings = Settings(
            ranks=ranks,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            batch_size=batch_size or (prepared.batch_size if prepared else 32),
            compute_seconds=compute
            if compute is not None
            else (prepared.compute_seconds if prepared else 0.0),
            baseline_files=baselines,
            deadline_s=timeout,
            verify=not skip_verify,
            command=("forebay", *_typed()),
            **options,
        )
        result = bench(facts.look(dataset), rows, settings, show)
        if simulated:
            simulate_like(result, of_machine, show)
    keys = ("name", "variant", "scale", "utilisation_line", "notes")
    result["workload"] = None if prepared is None else {key: getattr(prepared, key) for key in keys}
    show_result(result, table, as_json=as_json, report=report)
    return 0 if _is_good(result) else 1


def _share(global_batch: int, batch_size: int | None, ranks: int) -> int:
    """Return the samples per rank of a batch of all ranks."""
    if batch_size is not None:
        raise click.UsageError("expected --batch-size or --global-batch, found both")
    if global_batch % ranks:
        raise click.UsageError(f"--global-batch: expected a multiple of {ranks} ranks, found {global_batch}")
    return global_batch // ranks


def _typed() -> list[str]:
    return sys.argv[1:] if sys.argv[1:2] == ["bench"] else ["bench"]


def _is_good(result: dict[str, Any]) -> bool:
    return all(row["status"] != "failed" for row in result["rows"]) and all(
        one["equal"] for one in result["verified"]
    )
