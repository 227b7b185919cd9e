"""``forebay inspect``: what a dataset is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from forebay.cli.commands import as_json, dataset_options

if TYPE_CHECKING:
    from forebay.dataset import Dataset


@click.command()
@dataset_options
@as_json
def command(opening: Callable[[], Dataset], as_json: bool) -> None:
    """Print format, shards, samples, sizes, layout and file system of DATASET."""
    from forebay.cli.output import print_json, print_pairs

    found = opening().native.inspect()
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
