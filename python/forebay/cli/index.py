"""``forebay index``: build the sidecar of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from forebay.cli.commands import as_json, dataset_options

if TYPE_CHECKING:
    from forebay.dataset import Dataset


@click.command()
@dataset_options
@click.option(
    "--sidecar-in-dataset",
    is_flag=True,
    help="Write the sidecar beside the data, for all users, not into the cache directory.",
)
@as_json
def command(
    opening: Callable[[], Dataset],
    sidecar_in_dataset: bool,
    as_json: bool,
) -> None:
    """Build the index of DATASET and store it in a sidecar.

    DATASET is a path or pattern; several are the shards of one dataset.

    The index has the location of each sample, so that opening the dataset needs no search. The
    sidecar is a file in the user's cache directory.
    """
    from forebay.cli.output import print_json, print_pairs, progress

    with progress() as report:
        found = opening().native.build_index(beside=sidecar_in_dataset, progress=report)
    if as_json:
        print_json(found)
        return
    print_pairs(index_pairs(found))


def index_pairs(found: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what there is to print about an index that was built."""
    from forebay.cli.output import bytes_text

    excluded = ", ".join(f"{name} ({count})" for name, count in found["excluded"].items())
    pairs: list[tuple[str, object]] = [
        ("samples", found["samples"]),
        ("excluded records", excluded or "none"),
        (
            "read",
            f"{bytes_text(found['read_bytes'])} in {found['reads']} reads, {bytes_text(found['file_bytes'])} of data",
        ),
        ("seconds", f"{found['seconds']:.3f}"),
    ]
    if found["sidecar"]:
        pairs.append(("sidecar", f"{found['sidecar']} ({bytes_text(found['sidecar_bytes'])})"))
    return pairs
