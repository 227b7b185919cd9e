"""``forebay recipe``: recipes from which the layout of an LMDB file is computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay.cli.commands import Group, as_json, dataset_options

if TYPE_CHECKING:
    from forebay.dataset import Dataset

_in_dataset = click.option(
    "--sidecar-in-dataset",
    is_flag=True,
    help="Write sidecar and recipe beside the data, for all users, not into the cache directory.",
)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Derive, declare and verify recipes of LMDB files.

    A recipe is a few numbers from which the index can be computed, without reading the tree
    (docs/provenance.md). It is stored beside the sidecar.
    """
    context.obj = as_json


@command.command()
@dataset_options
@_in_dataset
@as_json
@click.pass_obj
def build(above: bool, opening: Callable[[], Dataset], sidecar_in_dataset: bool, as_json: bool) -> None:
    """Build the index of DATASET and derive a recipe from it."""
    from forebay.cli.output import progress
    from forebay_lab import _native

    with progress() as report:
        dataset = opening().native_of(_native)
        found = _native.build_with_recipe(dataset, beside=sidecar_in_dataset, progress=report)
    _print(found, as_json or above)


@command.command()
@dataset_options
@click.option(
    "--from",
    "recipe",
    metavar="FILE.toml",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The recipe; 16 leaf pages are read instead of the tree.",
)
@_in_dataset
@as_json
@click.pass_obj
def declare(
    above: bool, opening: Callable[[], Dataset], recipe: Path, sidecar_in_dataset: bool, as_json: bool
) -> None:
    """Take the recipe of DATASET from a file; verify it with `forebay recipe verify`."""
    from forebay.cli.output import progress
    from forebay_lab import _native

    with progress() as report:
        dataset = opening().native_of(_native)
        found = _native.declare_recipe(dataset, str(recipe), beside=sidecar_in_dataset, progress=report)
    _print(found, as_json or above)


@command.command()
@dataset_options
@as_json
@click.pass_obj
def show(above: bool, opening: Callable[[], Dataset], as_json: bool) -> int:
    """Print the stored recipe of DATASET; exit with 1 if there is none."""
    from forebay.cli.output import print_json, print_pairs
    from forebay_lab import _native

    found = _native.kept_recipe(opening().native_of(_native))
    if as_json or above:
        print_json(found or {})
    elif found:
        print_pairs(recipe_pairs({"recipe": found, "no_recipe": None}))
    else:
        print("forebay: no recipe is stored", file=sys.stderr)
    return 0 if found else 1


@command.command()
@dataset_options
@as_json
@click.pass_obj
def verify(above: bool, opening: Callable[[], Dataset], as_json: bool) -> int:
    """Compare the stored recipe of DATASET with all records.

    A declared recipe that passes is verified from then on; one that differs is deleted, and the
    command exits with 1.
    """
    from forebay.cli.output import print_json, print_pairs, progress
    from forebay_lab import _native

    with progress() as report:
        found = _native.verify_recipe(opening().native_of(_native), progress=report)
    if as_json or above:
        print_json(found)
    else:
        print_pairs(recipe_pairs(found) or [("recipe", "none")])
    if found["no_recipe"]:
        print(f"forebay: {found['no_recipe']}", file=sys.stderr)
    return 1 if found["no_recipe"] else 0


def _print(found: dict[str, Any], as_json: bool) -> None:
    """Print an index and its recipe."""
    from forebay.cli.index import index_pairs
    from forebay.cli.output import print_json, print_pairs

    if as_json:
        print_json(found)
    else:
        print_pairs([*index_pairs(found), *recipe_pairs(found)])


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
    state = "verified" if recipe["verified"] else "unverified: run `forebay recipe verify`"
    return [("recipe", text) for text in recipe["recipes"]] + [("", f"{recipe['path']} ({size}; {state})")]
