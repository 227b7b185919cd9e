"""``forebay pfs``: the emulated parallel file system."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from forebay.cli.commands import Group
from forebay.cli.numbers import COUNT, NUMBER, Finite, byte_count

if TYPE_CHECKING:
    from forebay_lab.pfs.start import Wanted

Function = TypeVar("Function", bound=Callable[..., Any])

FAULTS = ("eio", "stall", "slow", "partition", "clear")


def _json(function: Function) -> Function:
    """Add --json to a subcommand; it may also stand before the name."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=lambda context, _, wanted: wanted or bool(context.obj),
        help="Print one JSON object; keys as in docs/metrics.md.",
    )(function)


def _mount(function: Function) -> Function:
    return click.argument("mount", type=click.Path(path_type=Path))(function)


def _complete_presets(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    from forebay_lab import _native

    return [CompletionItem(name) for name in _native.pfs_presets() if name.startswith(begun)]


def _time_scale(_: click.Context, __: click.Parameter, text: str | None) -> float | str | None:
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError as error:
        raise click.BadParameter(f"expected a number or auto, found {text!r}") from error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; --json also works after the subcommand."
)
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Mount a directory at the speed of a parallel file system, and count its requests.

    Each mount is one node with its own page cache; all mounts of a directory share the modelled
    servers.
    """
    context.obj = as_json


@command.command(short_help="Mount a directory at one or more mount points, one per node.")
@click.argument("backing", type=click.Path(path_type=Path))
@click.argument("mounts", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="MOUNT...")
@click.option(
    "--preset",
    metavar="NAME",
    shell_complete=_complete_presets,
    help="File system to emulate, see `forebay pfs presets`.  [default: lustre-hdd]",
)
@click.option(
    "--spec",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file that describes the file system, instead of --preset.",
)
@click.option(
    "--targets", type=COUNT, metavar="N", help="Number of storage targets.  [default: the preset's]"
)
@click.option("--stripe", metavar="SIZE", callback=byte_count, help="Stripe size.  [default: the preset's]")
@click.option("--stripe-count", type=COUNT, metavar="N", help="Targets per file.  [default: the preset's]")
@click.option(
    "--time-scale",
    metavar="K",
    callback=_time_scale,
    help="Factor on all times of the model; auto: slow enough for a small machine.  [default: 1]",
)
@click.option("--seed", type=NUMBER, metavar="N", help="Seed of the model's jitter.  [default: 0]")
@click.option(
    "--events",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Record every read in this file as JSON lines.",
)
@click.option("--foreground", is_flag=True, help="Serve in this process until Ctrl-C or SIGTERM.")
@_json
def mount(
    backing: Path,
    mounts: tuple[Path, ...],
    preset: str | None,
    spec: Path | None,
    targets: int | None,
    stripe: int | None,
    stripe_count: int | None,
    time_scale: float | str | None,
    seed: int | None,
    events: Path | None,
    foreground: bool,
    as_json: bool,
) -> None:
    """Mount the directory BACKING at each MOUNT, an empty directory; each is one node.

    If BACKING is already mounted, the new mounts join its server.
    """
    from forebay.cli.output import print_json, print_pairs
    from forebay_lab.pfs import Server
    from forebay_lab.pfs.start import Wanted, start

    given = {"targets": targets, "stripe_bytes": stripe, "stripe_count": stripe_count}
    overrides = {name: value for name, value in given.items() if value is not None}
    wanted = Wanted(
        preset=preset, spec=spec, time_scale=time_scale, seed=seed, events=events, overrides=overrides
    )
    if foreground:
        _serve(backing, mounts, wanted, as_json)
        return
    started = start(backing, list(mounts), wanted)
    _report_removed(started.removed)
    server = Server.connect(started.socket)
    if started.is_new:
        _advise(server.spec, server.time_scale)
    if as_json:
        print_json(
            {
                **_facts(server),
                "new_mounts": [str(one) for one in started.mounts],
                "joined": not started.is_new,
                "removed_stale": [str(one) for one in started.removed],
            }
        )
        return
    nodes = {path: node for node, path in enumerate(server.mounts)}
    print_pairs(
        [
            *((f"node {nodes.get(path, '-')}", path) for path in started.mounts),
            ("file system", _sentence(server.spec, server.time_scale)),
            ("backing", server.backing),
            ("process", f"{server.pid}{'' if started.is_new else ' (already running)'}"),
        ]
    )


def _serve(backing: Path, mounts: tuple[Path, ...], wanted: Wanted, as_json: bool) -> None:
    import json
    import os

    from forebay.cli.output import print_json
    from forebay_lab.pfs.serve import serve
    from forebay_lab.pfs.start import prepare

    configuration, removed = prepare(backing, list(mounts), wanted)
    _report_removed(removed)
    _advise(configuration["spec"], configuration["time_scale"])
    if as_json:
        keys = ("backing", "mounts", "socket", "spec", "time_scale")
        print_json(
            {
                **{key: configuration[key] for key in keys},
                "pid": os.getpid(),
                "new_mounts": configuration["mounts"],
                "joined": False,
                "removed_stale": [str(one) for one in removed],
            }
        )
    else:
        sentence = _sentence(configuration["spec"], configuration["time_scale"])
        click.echo(f"serving {backing} as {sentence}; Ctrl-C unmounts")
    # The server may run for long: print the buffered output first.
    sys.stdout.flush()
    serve(json.dumps(configuration))


def _report_removed(removed: list[Path]) -> None:
    for path in removed:
        print(f"forebay: removed the stale mount {path}, whose server is gone", file=sys.stderr)


def _advise(spec: dict[str, Any], time_scale: float) -> None:
    """Warn about a file system that is too fast for a small machine."""
    import json

    from forebay_lab import _native

    suggested = _native.pfs_suggested_time_scale(json.dumps(spec))
    if suggested > time_scale:
        print(
            f"forebay: {spec['name']} with {spec['targets']} targets is too fast for a small machine in real time\n"
            f"hint: --time-scale auto multiplies all times, here by {suggested:.3g}; first reduce --targets",
            file=sys.stderr,
        )


def _facts(server: Any) -> dict[str, Any]:
    return {
        "backing": str(server.backing),
        "mounts": [str(one) for one in server.mounts],
        "socket": str(server.socket),
        "spec": server.spec,
        "time_scale": server.time_scale,
        "pid": server.pid,
    }


def _sentence(spec: dict[str, Any], time_scale: float) -> str:
    from forebay.cli.output import bytes_text

    rate = spec["target_bytes_per_second"]
    speed = "no costs" if not rate or rate > 1e15 else f"{spec['targets']} x {rate / 1e9:.3g} GB/s"
    stripe = f"stripes of {bytes_text(spec['stripe_bytes'])} over {spec['stripe_count']}"
    slower = "" if time_scale == 1 else f", {time_scale:g} times slower"
    return (
        f"{spec['name']}: {speed}, {spec['latency_us']:g} us, seek {spec['seek_us']:g} us, {stripe}{slower}"
    )


@command.command(short_help="Print the counters per node, server and file.")
@_mount
@click.option("--prometheus", is_flag=True, help="Print the text format of Prometheus.")
@_json
def stats(mount: Path, prometheus: bool, as_json: bool) -> None:
    """Print the counters of MOUNT's file system, per node, server and file."""
    from forebay.cli.output import print_json
    from forebay_lab.cli.pfs_stats import print_stats
    from forebay_lab.pfs import Server

    if prometheus and as_json:
        raise click.UsageError("--prometheus and --json exclude each other")
    server = Server.of(mount)
    if prometheus:
        click.echo(server.prometheus(), nl=False)
        return
    found = server.stats()
    if as_json:
        print_json(found)
    else:
        print_stats(found)
    if found["missed_deadlines"]:
        print(
            f"forebay: {found['lateness_share']:.0%} of the time of requests is lateness of the emulator "
            "(expected at most 5%): the times are not reliable\n"
            "hint: mount with a larger --time-scale, or stop other programs",
            file=sys.stderr,
        )


@command.command(short_help="Set all counters to zero.")
@_mount
@_json
def reset(mount: Path, as_json: bool) -> None:
    """Set all counters of MOUNT's file system to zero and empty the model's queues."""
    from forebay.cli.output import print_json
    from forebay_lab.pfs import Server

    server = Server.of(mount)
    server.reset()
    if as_json:
        print_json({"backing": str(server.backing), "mounts": [str(one) for one in server.mounts]})


@command.command(short_help="Empty the page cache of nodes.")
@click.argument("mounts", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="MOUNT...")
@_json
def drop_caches(mounts: tuple[Path, ...], as_json: bool) -> None:
    """Empty the page cache of the node at each MOUNT: the next reads reach the servers."""
    from forebay.cli.output import print_json, print_pairs
    from forebay_lab.pfs import Server

    dropped = {str(one): Server.of(one).drop_caches(one) for one in mounts}
    if as_json:
        print_json({"pages_dropped_files": dropped})
    else:
        print_pairs((one, f"{files} files dropped") for one, files in dropped.items())


@command.command(short_help="Inject a fault, or clear all.")
@_mount
@click.argument("kind", type=click.Choice(FAULTS))
@click.option(
    "--file",
    "file",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="eio: file, on the mount or relative to it.",
)
@click.option("--from", "begin", metavar="OFFSET", callback=byte_count, help="eio: first byte.  [default: 0]")
@click.option(
    "--to",
    "end",
    metavar="OFFSET",
    callback=byte_count,
    help="eio: end of the range.  [default: end of the file]",
)
@click.option("--server", "number", type=NUMBER, metavar="N", help="stall, slow: number of the server.")
@click.option("--for", "seconds", type=Finite(above=0), metavar="S", help="stall: duration in model seconds.")
@click.option("--factor", type=Finite(above=0), metavar="F", help="slow: factor on the server's times.")
@_json
def fault(
    mount: Path,
    kind: str,
    file: Path | None,
    begin: int | None,
    end: int | None,
    number: int | None,
    seconds: float | None,
    factor: float | None,
    as_json: bool,
) -> None:
    """Inject a fault into MOUNT's file system, or clear all.

    eio: reads of a range of a file fail on every node. stall: a server does nothing for a while.
    slow: a server takes longer, until the factor is 1 again. partition: all requests to this mount
    fail, as for an evicted client. clear: end all faults but partition.
    """
    from forebay.cli.output import print_json
    from forebay_lab.pfs import Server

    options: dict[str, object] = {"--file": file, "--from": begin, "--to": end}
    options |= {"--server": number, "--for": seconds, "--factor": factor}
    needed = {"eio": ("--file",), "stall": ("--server", "--for"), "slow": ("--server", "--factor")}.get(
        kind, ()
    )
    allowed = {*needed, *(("--from", "--to") if kind == "eio" else ())}
    given = {name for name, value in options.items() if value is not None}
    if missing := [name for name in needed if name not in given]:
        raise click.UsageError(f"fault {kind} needs {' and '.join(missing)}")
    if extra := [name for name in options if name in given - allowed]:
        raise click.UsageError(f"fault {kind} takes no {' and no '.join(extra)}")
    server = Server.of(mount)
    if kind == "eio":
        assert file is not None
        server.fail_range(file, begin or 0, end)
    elif kind == "stall":
        assert number is not None
        assert seconds is not None
        server.stall(number, seconds)
    elif kind == "slow":
        assert number is not None
        assert factor is not None
        server.slow(number, factor)
    elif kind == "partition":
        server.partition(mount)
    else:
        server.clear_faults()
    if as_json:
        print_json({"kind": kind, "faults": server.stats()["faults"]})


@command.command(short_help="Unmount; the server ends with the last mount.")
@click.argument("mounts", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="MOUNT...")
@_json
def unmount(mounts: tuple[Path, ...], as_json: bool) -> None:
    """Unmount each MOUNT, also stale ones. The server of a directory ends with its last mount."""
    from forebay.cli.output import print_json
    from forebay_lab.pfs import unmount

    done = [unmount(one) for one in mounts]
    if as_json:
        print_json({"unmounted": [str(one) for one in done]})


@command.command(name="list")
@_json
def list_(as_json: bool) -> None:
    """List all mounts of the emulator on this machine."""
    from forebay._core import StorageError
    from forebay.cli.output import print_json, print_table
    from forebay_lab.pfs import Server, list_mounts

    found: list[dict[str, Any]] = []
    for one in list_mounts():
        row: dict[str, Any] = {"mount": str(one.mount), "alive": one.alive, "socket": str(one.socket)}
        row |= {"backing": None, "file_system": None, "time_scale": None, "pid": None}
        if one.alive:
            try:
                server = Server.connect(one.socket)
                row["backing"], row["pid"] = str(server.backing), server.pid
                row["file_system"], row["time_scale"] = server.spec["name"], server.time_scale
            except StorageError as error:
                print(f"forebay: {error}", file=sys.stderr)
        found.append(row)
    if as_json:
        print_json({"mounts": found})
    elif found:
        rows = [
            (
                row["mount"],
                row["backing"] or ("-" if row["alive"] else "stale"),
                row["file_system"] or "-",
                "-" if row["time_scale"] is None else f"{row['time_scale']:g}",
                row["pid"] or "-",
            )
            for row in found
        ]
        print_table(("mount", "backing", "file system", "time scale", "process"), rows)


@command.command(short_help="List the preset file systems.")
@click.argument("name", required=False, shell_complete=_complete_presets)
@_json
def presets(name: str | None, as_json: bool) -> None:
    """List the preset file systems, or print all numbers of NAME with their sources."""
    import json

    from forebay.cli.output import print_json, print_pairs, print_table
    from forebay_lab import _native

    names = _native.pfs_presets() if name is None else [name]
    specs = [json.loads(_native.pfs_spec(one, None, None, "{}")) for one in names]
    suggested = [_native.pfs_suggested_time_scale(json.dumps(one)) for one in specs]
    if as_json:
        found = [
            {"spec": spec, "suggested_time_scale": factor}
            for spec, factor in zip(specs, suggested, strict=True)
        ]
        print_json({"presets": found})
    elif name is None:
        rows = [
            (
                spec["name"],
                spec["targets"],
                f"{spec['target_bytes_per_second'] / 1e9:.3g}",
                f"{spec['latency_us']:g}",
                f"{spec['seek_us']:g}",
                f"{factor:.3g}",
            )
            for spec, factor in zip(specs, suggested, strict=True)
        ]
        print_table(("preset", "targets", "GB/s each", "latency us", "seek us", "time scale auto"), rows)
    else:
        (spec,) = specs
        print_pairs((key, value) for key, value in spec.items() if key != "sources")
        print_pairs([("time scale auto", f"{suggested[0]:.3g}")])
        for key, source in spec["sources"].items():
            click.echo(f"source of {key}: {source}")
