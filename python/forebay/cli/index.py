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
    help="Write it beside the data, for all users, instead of into the cache directory.",
)
@click.option(
    "--provenance",
    is_flag=True,
    help="Look for a recipe too: the few facts about how the data were written from which their layout can be computed.",
)
@click.option(
    "--provenance-from",
    metavar="FILE.toml",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take the recipe from this file and read sixteen leaf pages, not the tree; unverified until `forebay verify`.",
)
@as_json
def command(
    opening: Callable[[], Dataset],
    sidecar_in_dataset: bool,
    provenance: bool,
    provenance_from: Path | None,
    as_json: bool,
) -> None:
    """Build the sidecar of DATASET (paths or patterns; several are the shards of one dataset).

    The sidecar tells where each sample lies, so that opening the dataset needs no search. By itself
    it is kept in the cache directory of the user.

    A recipe (docs/provenance.md) makes the same known without reading the tree. It is kept in the
    same place.
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
