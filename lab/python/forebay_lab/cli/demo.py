"""``forebay demo``: the main job on this machine, end to end."""

from __future__ import annotations

from pathlib import Path

import click

from forebay.cli.commands import as_json
from forebay.cli.numbers import COUNT


@click.command()
@click.option("--ranks", default=4, show_default=True, type=COUNT, help="MPI ranks.")
@click.option("--samples", default=200_000, show_default=True, type=COUNT, help="Number of training samples.")
@click.option(
    "--output",
    default="demo.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Page to write.",
)
@click.option("--keep", is_flag=True, help="Keep the dataset for the next run.")
@click.option(
    "--pfs",
    "preset",
    metavar="PRESET",
    help="File system to emulate, see `forebay pfs presets`.  [default: nfs, if FUSE is available]",
)
@click.option("--no-pfs", is_flag=True, help="Read the local disk instead of an emulated file system.")
@as_json
def command(
    ranks: int, samples: int, output: Path, keep: bool, preset: str | None, no_pfs: bool, as_json: bool
) -> int:
    """Train a small model from an LMDB file on MPI ranks of this machine, three times.

    The runs use py-lmdb with Caffe's skipping pattern, Forebay in the same order (with identical
    losses), and Forebay's group order. They read through an emulated NFS server if FUSE is
    available, else from the local disk. The command prints a table and writes a page. Install its
    libraries with `pip install 'forebay[demo]'`.
    """
    try:
        from forebay_lab.demo import main
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
