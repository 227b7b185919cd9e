"""``forebay convert``: a dataset in another format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forebay.cli.commands import SAMPLE_AXES, as_json, dataset_options
from forebay.cli.numbers import SIZE

if TYPE_CHECKING:
    from forebay.dataset import Dataset
    from forebay.tools.convert import Converted


# Bad samples that are printed.
MAX_LISTED = 100


def _list(found: Converted) -> None:
    """Print the samples that were left out."""
    if not (bad := found.left_out):
        return
    everything = found.samples + len(bad)
    print(
        f"forebay: {len(bad)} of {everything} samples are bad and were left out; the {found.samples} others are "
        f"numbered anew in {found.target}:",
        file=sys.stderr,
    )
    for number, message in bad[:MAX_LISTED]:
        print(f"forebay: left out: sample {number}: {message}", file=sys.stderr)
    if len(bad) > MAX_LISTED:
        print(f"forebay: left out: {len(bad) - MAX_LISTED} more", file=sys.stderr)


@click.command()
@dataset_options
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--to",
    metavar="NAME",
    help="Format of TARGET.  [default: from its suffix]",
)
@click.option(
    "--bad-samples",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="Whether a bad sample ends the command or is left out.",
)
@click.option(
    "--copy-at-most",
    type=SIZE,
    default=100 << 30,
    metavar="N",
    help="Most bytes of remote objects that are copied.  [default: 100 GiB]",
)
@click.option(
    "--copy-to",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Directory for copies of remote objects.  [default: that for temporary files]",
)
@click.option("--force", is_flag=True, help="Replace TARGET if it is a file or an LMDB environment.")
@as_json
def command(
    opening: Callable[[Sequence[str]], Dataset],
    target: Path,
    to: str | None,
    bad_samples: str,
    copy_at_most: int,
    copy_to: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the samples of DATASET, in order, to TARGET in another format.

    Formats: lmdb, hdf5, tfrecord, recordio, tar, npy, npz, raw, arrow, parquet, folder. The command
    fails before it writes if TARGET cannot hold the samples, and reports what TARGET stores
    differently, such as a shape. It creates TARGET under a temporary name and renames it when it is
    complete.

    The command compares every checksum in DATASET. A bad sample is an error that names file, sample
    and offset. `--bad-samples skip` leaves bad samples out and lists them.

    DATASET may be an address that fsspec knows, such as s3://bucket/train-*.tar. Its objects are
    copied to a temporary directory first, which is removed at the end.
    """
    from forebay.cli.output import bytes_text, print_json, print_pairs, progress
    from forebay.tools.convert import convert
    from forebay.tools.convert.remote import local_copies
    from forebay.tools.convert.source import open_source

    named = click.get_current_context().params
    fields = [field for field in named["field"] if ":" not in field]
    axis = SAMPLE_AXES[named["sample_axis"]]
    with progress() as report, local_copies(named["dataset"], copy_at_most, copy_to, report) as paths:
        source = open_source(lambda: opening(paths), paths, fields, axis, bad_samples, report)
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
                "left_out": [{"sample": number, "message": message} for number, message in found.left_out],
            }
        )
        _list(found)
        return
    print_pairs(
        [
            ("target", f"{found.target} ({found.format}, {bytes_text(found.file_bytes)})"),
            ("samples", found.samples),
            *([("left out", len(found.left_out))] if found.left_out else []),
            ("seconds", f"{found.seconds:.3f}"),
        ]
    )
    _list(found)
    for note in found.notes:
        print(f"forebay: {note}", file=sys.stderr)
