"""``forebay index``: build the sidecar of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
@click.option(
    "--provenance",
    is_flag=True,
    help="Also derive a recipe: a few numbers from which the layout can be computed.",
)
@click.option(
    "--provenance-from",
    metavar="FILE.toml",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take the recipe from this file; read 16 leaf pages instead of the tree. Verify it with `forebay verify`.",
)
@as_json
def command(
    opening: Callable[[], Dataset],
    sidecar_in_dataset: bool,
    provenance: bool,
    provenance_from: Path | None,
    as_json: bool,
) -> None:
    """Build the index of DATASET and store it in a sidecar.

    DATASET is a path or pattern; several are the shards of one data set.

    The index has the location of each sample, so that opening the data set needs no search. The
    sidecar is a file in the user's cache directory.

    The index can also be computed from a recipe (docs/provenance.md), without reading the tree. The
    recipe is stored beside the sidecar.
    """
    from forebay.cli.output import bytes_text, print_json, print_pairs, progress

    if provenance and provenance_from:
        raise click.UsageError(
            "--provenance looks for a recipe, --provenance-from is given one: name one of them"
        )
    native = opening().native
    with progress() as report:
        if provenance_from:
            found = native.declare_recipe(str(provenance_from), beside=sidecar_in_dataset, progress=report)
        elif provenance:
            found = native.build_with_recipe(beside=sidecar_in_dataset, progress=report)
        else:
            found = native.build_index(beside=sidecar_in_dataset, progress=report)
    if as_json:
        print_json(found)
        return
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
    print_pairs([*pairs, *recipe_pairs(found)])


def recipe_pairs(found: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what there is to print about a recipe."""
    from forebay.cli.output import bytes_text

    if reason := found["no_recipe"]:
        return [("recipe", f"none; the sidecar serves instead: {reason}")]
    if not (recipe := found["recipe"]):
        return []
    size = bytes_text(recipe["recipe_bytes"])
    if recipe["list_bytes"]:
        size += f" and lists of {bytes_text(recipe['list_bytes'])}"
    state = "verified" if recipe["verified"] else "unverified: run `forebay verify`"
    return [("recipe", text) for text in recipe["recipes"]] + [("", f"{recipe['path']} ({size}; {state})")]
