"""``forebay store``: the daemon that keeps shares of in-memory stores between jobs."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import time
from types import FrameType
from typing import Any

import click

from forebay.cli.commands import Group, as_json
from forebay.cli.numbers import byte_count, seconds

_NO_DAEMON = "no store daemon of this user runs on this node"

# Shares are kept in chunks of this length.
_LEAST_BYTES = 1 << 20


def _share_bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the memory for shares (the callback of `--memory`)."""
    found = byte_count(context, parameter, text)
    if found is not None and found < _LEAST_BYTES:
        raise click.BadParameter(
            f"expected at least 1MiB, the length of a chunk, found {text!r}: {found} bytes "
            "(sizes without a unit are bytes: 10GiB, for example)"
        )
    return found


@click.group(cls=Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Keep shares of in-memory stores between jobs: a daemon of this user on this node.

    A loader with store="auto" finds the daemon of its node by itself. Without a command, print
    what it holds.
    """
    if context.invoked_subcommand is None:
        context.invoke(status, as_json=as_json)


@command.command("start")
@click.option(
    "--memory",
    metavar="SIZE",
    callback=_share_bytes,
    help="Memory that shares may take, at least 1MiB.  [default: half of that of the node]",
)
@click.option(
    "--idle",
    metavar="TIME",
    callback=seconds,
    default="1h",
    help="End when nothing was used for this time, such as 90s, 30min or 2h.  [default: 1h]",
)
@click.option("--foreground", is_flag=True, help="Serve in this process until Ctrl-C or SIGTERM.")
@as_json
def start(memory: int | None, idle: float, foreground: bool, as_json: bool) -> None:
    """Start the daemon, if this user has none on this node, and print what it holds.

    A daemon that runs goes on with its own options: the command says which of those given differ.

    Example: forebay store start --memory 200GiB --idle 8h
    """
    from forebay.cli.output import print_json
    from forebay.tools.store import start as start_daemon
    from forebay.tools.store import status as ask

    if foreground:
        _serve(memory, idle, as_json)
        return
    is_new = start_daemon(memory, idle)
    daemon = ask()
    if daemon is not None and not is_new:
        print(
            f"forebay: a store daemon of this user runs on this node already, process {daemon['pid']}: "
            "none is started",
            file=sys.stderr,
        )
        _report_differences(daemon, memory, idle)
    if as_json:
        print_json({"daemon": _located(daemon), "is_new": is_new})
    elif daemon is None:
        click.echo(_NO_DAEMON)
    else:
        _print(daemon, "" if is_new else " (already running)")


@command.command("status")
@as_json
def status(as_json: bool) -> None:
    """Print the shares that the daemon keeps, their memory, and the processes that use them."""
    from forebay.cli.output import print_json
    from forebay.tools.store import status as ask

    daemon = ask()
    if as_json:
        print_json({"daemon": _located(daemon)})
    elif daemon is None:
        click.echo(_NO_DAEMON)
    else:
        _print(daemon)


@command.command("stop")
@as_json
def stop(as_json: bool) -> None:
    """End the daemon and free its memory.

    Loaders that use a share go on: its memory is freed when the last of them ends.
    """
    from forebay.cli.output import print_json
    from forebay.tools.store import stop as stop_daemon

    stopped = stop_daemon()
    pid, users = stopped if stopped is not None else (None, 0)
    if as_json:
        print_json({"pid": pid, "users": users})
    elif pid is None:
        click.echo(_NO_DAEMON)
    else:
        click.echo(f"process {pid} has ended")
        if users:
            click.echo(f"{users} process(es) go on with its shares: their memory is freed when they end")


def _serve(memory: int | None, idle: float, as_json: bool) -> None:
    """Serve in this process."""
    from forebay import _native
    from forebay.cli.output import print_json

    def listening(is_new: bool) -> None:
        if as_json:
            print_json({"pid": os.getpid() if is_new else None, "is_new": is_new})
        elif is_new:
            click.echo(f"serving in process {os.getpid()}; Ctrl-C ends it")
        # The daemon may run for long: print the buffered output first.
        sys.stdout.flush()
        if not is_new:
            print("forebay: this user has a store daemon on this node: this one ends", file=sys.stderr)

    def end(_: int, __: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    with contextlib.suppress(KeyboardInterrupt):
        _native.serve_store(memory, idle, listening)


def _report_differences(daemon: dict[str, Any], memory: int | None, idle: float) -> None:
    from forebay.cli.output import bytes_text

    differences = []
    if memory is not None and memory != daemon["memory_bytes"]:
        differences.append(f"--memory {bytes_text(daemon['memory_bytes'])}")
    given = click.get_current_context().get_parameter_source("idle")
    if given is click.core.ParameterSource.COMMANDLINE and idle != daemon["idle_s"]:
        differences.append(f"--idle {daemon['idle_s']:g}s")
    if differences:
        print(
            f"forebay: the running store daemon keeps {' and '.join(differences)}\n"
            "hint: `forebay store stop` ends it",
            file=sys.stderr,
        )


def _located(daemon: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if daemon is None else {"host": platform.node(), **daemon}


def _print(daemon: dict[str, Any], remark: str = "") -> None:
    from forebay.cli.output import bytes_text, print_pairs, print_table

    left = daemon["idle_left_s"]
    print_pairs(
        (
            ("daemon", f"process {daemon['pid']} on {platform.node()}{remark}"),
            ("memory", f"{bytes_text(daemon['held_bytes'])} of {bytes_text(daemon['memory_bytes'])}"),
            ("ends", "not while shares are used" if left is None else f"in {left:.0f} s, unless it is used"),
        )
    )
    if daemon["shares"]:
        print_table(
            ("dataset", "node", "size", "loaded", "last used", "used by"),
            [
                (
                    share["path"],
                    f"{share['node']} of {share['nodes']}",
                    bytes_text(share["bytes"]),
                    _time(share["loaded_unix_s"]),
                    _time(share["used_unix_s"]),
                    ", ".join(map(str, share["pids"])) or "-",
                )
                for share in daemon["shares"]
            ],
        )


def _time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
