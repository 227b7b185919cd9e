"""``forebay inspect``: what a dataset is made of, and the order that it gets by default."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from forebay._text import bytes_text
from forebay.cli.commands import as_json, dataset_options
from forebay.cli.numbers import COUNT

# Files and classes that are named.
_MOST_NAMED = 8
# Facts of a file that have lines of their own.
_SHOWN_APART = ("path", "bytes", "samples", "classes")

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
        print_pairs(_wrapped(_for_people(found, dataset.fields())))


def _for_people(found: dict[str, Any], fields: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a line of text for each fact that a person asks for; JSON has the rest."""
    records, order, shards = found["records"], found["order"], found["shards"]
    yield "format", f"{found['format']}, schema {found['schema']}"
    counted = ", counted by the first axis" if found["counted_by"] == "first axis" else ""
    excluded = ", ".join(f"{name} {count:,}" for name, count in records["excluded"].items())
    yield "samples", f"{found['samples']:,}{counted}{f'; excluded: {excluded}' if excluded else ''}"
    yield "size", f"{bytes_text(found['bytes'])} in {_count(len(shards), 'file')}"
    if records["shortest_bytes"] == records["longest_bytes"]:
        spread = f"{records['shortest_bytes']:,} bytes each"
    else:
        spread = f"{records['mean_bytes']:,.0f} bytes on average, {records['shortest_bytes']:,} to {records['longest_bytes']:,}"
    yield "records", f"{bytes_text(records['bytes'])}: {spread}"
    for name, dtype, shape in fields:
        text = "length varies" if shape is None else "x".join(map(str, shape)) or "one value"
        yield f"field {name}", f"{dtype}, {text}"
    if classes := shards[0].get("classes"):
        named = ", ".join(classes[:_MOST_NAMED]) + (", ..." if len(classes) > _MOST_NAMED else "")
        yield "classes", f"{len(classes):,}: {named}"
    place = "local" if found["file_system_is_local"] else "on other nodes"
    yield "storage", f"{found['file_system']}, {place}"
    for shard in shards[:_MOST_NAMED]:
        samples = f", {shard['samples']:,} samples" if len(shards) > 1 else ""
        yield "file", f"{shard['path']} ({bytes_text(shard['bytes'])}{samples})"
    if len(shards) > _MOST_NAMED:
        yield "", f"and {len(shards) - _MOST_NAMED:,} more; --json names all"
    layout = {key: value for key, value in shards[0].items() if key not in _SHOWN_APART and value is not None}
    if layout:
        yield "layout", ", ".join(f"{key.replace('_', ' ')} {_text(value)}" for key, value in layout.items())
    sidecar = found["sidecar"]
    yield "index", "no sidecar" if sidecar is None else f"{sidecar['path']} ({bytes_text(sidecar['bytes'])})"
    if order:
        yield from _order(order)
    yield "fingerprint", found["fingerprint"]
    for warning in found["warnings"]:
        yield "warning", warning


def _order(order: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the default order is, and how well it shuffles."""
    quality = order["shuffle_quality"]
    yield (
        "default order",
        f"groups of {_count(order['group_samples'], 'sample')}, {order['group_window']:,} mixed at a time, in "
        f"{_count(order['lanes'], 'lane')}, for {_count(order['ranks'], 'rank')} with batches of "
        f"{order['batch_size']:,}",
    )
    yield (
        "shuffle quality",
        f"order entropy {quality['order_entropy']:.3f} of a full shuffle's; two samples of a global batch share a group "
        f"with chance {quality['same_group_pairs']:.4f} ({quality['full_shuffle_same_group_pairs']:.4f} in a full shuffle)",
    )


def _wrapped(pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Break lines that a terminal of 80 columns would break, between words."""
    known = list(pairs)
    width = 78 - max(len(name) for name, _ in known)
    for name, value in known:
        lines = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False) or [""]
        yield name, lines[0]
        yield from (("", line) for line in lines[1:])


def _text(value: Any) -> str:
    return (
        f"{value:,}"
        if type(value) is int
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
