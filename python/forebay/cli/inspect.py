"""``forebay inspect``: what a dataset is made of, and the order that it gets by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from forebay.cli.commands import as_json, dataset_options
from forebay.cli.numbers import COUNT

if TYPE_CHECKING:
    from forebay.dataset import Dataset


@click.command()
@dataset_options
@click.option(
    "--ranks", default=1, show_default=True, type=COUNT, help="Ranks to compute the default order for."
)
@click.option(
    "--batch-size",
    default=32,
    show_default=True,
    type=COUNT,
    help="Samples per rank and step to compute the default order for.",
)
@click.option(
    "--epochs",
    type=COUNT,
    help="Epochs of the training; warn if the order does not shuffle well enough for them.",
)
@as_json
def command(
    opening: Callable[[], Dataset], ranks: int, batch_size: int, epochs: int | None, as_json: bool
) -> None:
    """Print format, shards, samples, sizes, layout and file system of DATASET.

    The command also prints how well the default order shuffles.
    """
    from forebay.cli.output import print_json, print_pairs

    dataset = opening().native
    found = dataset.inspect()
    found["order"], warning = dataset.default_order(ranks=ranks, batch_size=batch_size, epochs=epochs)
    if warning is not None:
        found["warnings"].append(warning)
    if as_json:
        print_json(found)
    else:
        print_pairs(_flat(found))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """Write nested objects as dotted names, in their order."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for position, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{position}]")
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value)) or "none"
    else:
        yield name, "none" if value is None or value == {} else value
