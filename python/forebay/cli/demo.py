"""``forebay demo``: the main job on this machine, end to end."""

from __future__ import annotations

from pathlib import Path

import click

from forebay.cli.commands import as_json
from forebay.cli.numbers import COUNT


@click.command()
@click.option("--ranks", default=4, show_default=True, type=COUNT, help="MPI ranks.")
@click.option("--samples", default=200_000, show_default=True, type=COUNT, help="Training samples to make.")
@click.option(
    "--output",
    default="demo.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write.",
)
@click.option("--keep", is_flag=True, help="Keep the data set for the next time.")
@click.option(
    "--pfs",
    "preset",
    metavar="PRESET",
    help="File system to emulate (forebay pfs presets).  [default: nfs, with FUSE]",
)
@click.option("--no-pfs", is_flag=True, help="Read the local disk.")
@as_json
def command(
    ranks: int, samples: int, output: Path, keep: bool, preset: str | None, no_pfs: bool, as_json: bool
) -> int:
    """Train a small model on MPI ranks of this machine from a real LMDB file, three ways.

    With py-lmdb and Caffe's skipping pattern, with Forebay in the same order (the losses are
    identical), and with Forebay's group order. The file is read through an emulated NFS server
    where FUSE can be used, else from the local disk. Prints a table and writes a page. Needs `pip
    install 'forebay[demo]'`.
    """
    try:
        from forebay.tools.demo import main
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is not installed\nhint: pip install 'forebay[demo]'"
        ) from error

    return main(
        json=as_json,
        keep=keep,
        ranks=ranks,
        samples=samples,
        output=output,
        preset=preset,
        emulate=not no_pfs,
    )
