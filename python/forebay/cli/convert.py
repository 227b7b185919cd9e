"""``forebay convert``: a dataset in another format."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forebay.cli.commands import SAMPLE_AXES, as_json, dataset_options

if TYPE_CHECKING:
    from forebay.dataset import Dataset


@click.command()
@dataset_options
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--to",
    metavar="NAME",
    help="The format of TARGET. By itself its suffix tells: .lmdb, .h5, .npz and so on.",
)
@click.option("--force", is_flag=True, help="Replace TARGET, if it is a file or an LMDB environment.")
@as_json
def command(opening: Callable[[], Dataset], target: Path, to: str | None, force: bool, as_json: bool) -> None:
    """Write the samples of DATASET, in order, to TARGET in another format, with that format's own library.

    Written are lmdb, hdf5, tfrecord, recordio, tar, npy, npz, raw and folder. What TARGET cannot hold is refused before
    anything is written; what it does not keep as it was (a shape, a name) is told. TARGET gets its name when it is complete.
    """
    from forebay.cli.output import bytes_text, print_json, print_pairs, progress
    from forebay.convert import convert
    from forebay.convert.source import open_source

    named = click.get_current_context().params
    fields = [field for field in named["field"] if ":" not in field]
    source = open_source(opening, named["dataset"], fields, SAMPLE_AXES[named["sample_axis"]])
    with progress() as report:
        found = convert(source, target, to=to, force=force, progress=report)
    if as_json:
        print_json(
            {
                "target": str(found.target),
                "format": found.format,
                "samples": found.samples,
                "file_bytes": found.file_bytes,
                "seconds": found.seconds,
                "notes": found.notes,
            }
        )
        return
    print_pairs(
        [
            ("target", f"{found.target} ({found.format}, {bytes_text(found.file_bytes)})"),
            ("samples", found.samples),
            ("seconds", f"{found.seconds:.3f}"),
        ]
    )
    for note in found.notes:
        print(f"forebay: {note}", file=sys.stderr)
