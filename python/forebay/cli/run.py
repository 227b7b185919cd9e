"""``forebay run``: its help page. The command itself does without click (``tools/run``)."""

from __future__ import annotations

from typing import Any

import click

from forebay.tools.run.command_line import OPTIONS, Arguments

# Options end at `--`, as they do where `tools/run` reads them.
_CONTEXT = {"help_option_names": ["-h", "--help"], "allow_interspersed_args": False}


@click.command(context_settings=_CONTEXT)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND ...")
def command(**given: Any) -> int:
    """Run COMMAND; it and all programs that it starts read the sources through storage tiers.

    The programs need no change. Files are copied to the tiers as they are read; later opens get the
    copies, also in later jobs. Forebay makes no copy visible that differs from its source. The exit
    status is that of COMMAND.

    Example: forebay run --tier /scratch/me:200GiB --source /lustre/imagenet -- python train.py
    """
    from forebay.tools.run.main import run

    return run(Arguments(**given))


for flag in OPTIONS:
    command = click.option(
        flag.name,
        flag.field,
        metavar=flag.metavar,
        help=flag.help,
        multiple=flag.is_repeated,
        is_flag=flag.metavar is None,
        type=click.Choice(flag.choices) if flag.choices else None,
    )(command)
