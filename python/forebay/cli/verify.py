"""``forebay verify``: every sample readable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from forebay.cli.commands import as_json, dataset_options
from forebay.cli.numbers import Whole

if TYPE_CHECKING:
    from forebay.dataset import Dataset


@click.command()
@dataset_options
@click.option(
    "--threads", default=2, show_default=True, type=Whole(1, 64), help="Threads that read, 1 to 64."
)
@as_json
def command(opening: Callable[[], Dataset], threads: int, as_json: bool) -> int:
    """Read every sample of DATASET and check its location, schema and checksums.

    The command lists bad samples and then exits with 1. It also compares a stored recipe
    (docs/provenance.md) with all records. A declared recipe that passes is verified from then on;
    one that fails is reported and never used.
    """
    from forebay.cli.output import print_json, print_pairs, progress

    opened = opening()
    with progress() as report:
        found = opened.native.verify(threads=threads, progress=report)
    bad = found["bad"]
    if as_json:
        print_json(found)
    else:
        print_pairs([("samples", found["samples"]), ("bad", len(bad))])
        for one in bad:
            click.echo(f"sample {one['sample']}: {one['message']}")
    if bad:
        print(f"forebay: {len(bad)} of {found['samples']} samples are bad", file=sys.stderr)
    return 1 if bad else 0
