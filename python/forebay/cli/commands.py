"""The list of commands and what they share.

Each command is a module with one function ``command``; the table below is all that ``forebay
--help`` needs to import. Other distributions add commands by entry points of the group
``forebay.commands``: each is a package with such modules and such a table ``COMMANDS``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import click

from forebay import _renamed
from forebay.cli.numbers import OFFSET, SIZE

__all__ = ["COMMANDS", "Group", "as_json", "cli", "dataset_options"]

Function = TypeVar("Function", bound=Callable[..., Any])

COMMANDS = {
    "index": "Build the index of a dataset and store it in a sidecar.",
    "inspect": "Print format, shards, samples, sizes and layout of a dataset.",
    "verify": "Read and check every sample of a dataset.",
    "convert": "Write the samples of a dataset in another format.",
    "run": "Run an unchanged program through storage tiers.",
    "top": "Show what running programs and loaders read from storage tiers.",
    "limit": "Measure the read rate of the page cache, or of a storage with --cold.",
    "cache": "Show, check or delete what the storage tiers hold, and sidecars.",
    "store": "Keep shares of in-memory stores between jobs.",
}

# Commands of forebay-lab, for a hint where it is not installed.
_OF_LAB = ("bench", "costs", "demo", "pfs", "recipe", "report", "simulate")


class Group(click.Group):
    """A group that suggests the command that a wrong one may stand for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if (today := _renamed.COMMANDS.get(args[0])) in self.list_commands(ctx):
                raise click.UsageError(f"{error.message}\nhint: it is called {today}", ctx) from None
            from forebay._core import nearest

            near = nearest(args[0], self.list_commands(ctx))
            if not near or error.message.endswith("?"):
                raise
            raise click.UsageError(f"{error.message} Did you mean {near!r}?", ctx) from None


def packages() -> dict[str, Mapping[str, str]]:
    """Return the packages of commands, with what help says of each command."""
    from importlib.metadata import entry_points

    added = {entry.module: entry.load() for entry in entry_points(group="forebay.commands")}
    return {"forebay.cli": COMMANDS, **added}


class _Commands(Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in packages().values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return _command("forebay.cli", cmd_name)
        for package, commands in packages().items():
            if cmd_name in commands:
                return _command(package, cmd_name)
        if cmd_name in _OF_LAB:
            raise click.UsageError(
                f"`forebay {cmd_name}` is a command of forebay-lab, which is not installed\n"
                "hint: pip install 'forebay[lab]'",
                ctx,
            )
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for package, commands in packages().items():
            distribution = package.partition(".")[0].replace("_", "-")
            with formatter.section("Commands" if package == "forebay.cli" else f"Commands of {distribution}"):
                formatter.write_dl(list(commands.items()))


def _command(package: str, name: str) -> click.Command:
    command: click.Command = importlib.import_module(f"{package}.{name}").command
    return command


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from forebay import __version__

        click.echo(f"forebay {__version__}")
        context.exit()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def cli() -> None:
    """Move training samples from shared storage into the memory of every rank."""


def as_json(function: Function) -> Function:
    """Add the option ``--json``, which every command has."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object; keys as in docs/metrics.md."
    )(function)


SAMPLE_AXES: Mapping[str, Any] = {"auto": "auto", "0": 0, "none": None}
"""What `--sample-axis` may be, and what `forebay.open` takes for it."""

_OPENING = (
    click.option("--format", metavar="NAME", help="Container format.  [default: detected from the contents]"),
    click.option(
        "--field",
        "field",
        metavar="NAME[:TYPE[:SHAPE]]",
        multiple=True,
        help="Field to read; repeat for several. Raw files need its type and shape, for example "
        "image:u1:3x32x32.  [default: all]",
    ),
    click.option("--record-bytes", type=SIZE, metavar="N", help="Record length of a raw file."),
    click.option(
        "--header-bytes",
        type=OFFSET,
        default=0,
        metavar="N",
        help="Bytes before the first record of a raw file.  [default: 0]",
    ),
    click.option(
        "--schema",
        metavar="NAME",
        help="How records become fields.  [default: detected from a few records]",
    ),
    click.option("--database", metavar="NAME", help="Named sub-database of an LMDB environment."),
    click.option(
        "--sample-axis",
        type=click.Choice(list(SAMPLE_AXES)),
        default="auto",
        show_default=True,
        help="Samples of HDF5, npy and npz files. 0: the first axis counts them. none: each file is one. "
        "auto: as 0, with a warning if the files look like single samples.",
    ),
    click.option(
        "--nulls",
        type=click.Choice(["raise", "mask"]),
        default="raise",
        show_default=True,
        help="Nulls of Arrow and Parquet. raise: an error. mask: a field NAME.valid tells them from values.",
    ),
)


def dataset_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a command ``opening``: a function that opens its dataset, or one at other paths."""

    @functools.wraps(function)
    def command(
        *,
        dataset: tuple[str, ...],
        field: tuple[str, ...],
        format: str | None,
        record_bytes: int | None,
        header_bytes: int,
        schema: str | None,
        database: str | None,
        sample_axis: str,
        nulls: Literal["raise", "mask"],
        **rest: Any,
    ) -> Any:
        def opening(paths: Sequence[str] = dataset) -> Any:
            import forebay

            return forebay.open(
                paths,
                format=format,
                fields=_fields(field),
                record_bytes=record_bytes,
                header_bytes=header_bytes,
                schema=schema,
                database=database,
                sample_axis=SAMPLE_AXES[sample_axis],
                nulls=nulls,
            )

        return function(opening=opening, **rest)

    for option in reversed(_OPENING):
        command = option(command)
    return click.argument("dataset", nargs=-1, required=True)(command)


def _fields(told: tuple[str, ...]) -> Any:
    """Read fields: names, or names with types and shapes."""
    if not any(":" in field for field in told):
        return list(told) or None
    fields: dict[str, Any] = {}
    for field in told:
        name, _, rest = field.partition(":")
        dtype, _, shape = rest.partition(":")
        try:
            fields[name] = (dtype, tuple(int(extent) for extent in shape.split("x"))) if shape else dtype
        except ValueError:
            raise click.UsageError(
                f"--field {field}: expected a shape such as 3x32x32, found {shape}"
            ) from None
    return fields
