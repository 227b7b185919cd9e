"""``forebay index``: build the sidecar of a dataset."""

from __future__ import annotations

import click

from forebay.cli.commands import as_json, dataset_options


@click.command()
@dataset_options
@click.option(
    "--beside",
    is_flag=True,
    help="Write it beside the data, for all users of it, not in the cache directory.",
)
@as_json
def command(
    dataset: tuple[str, ...],
    schema: str | None,
    database: str | None,
    beside: bool,
    as_json: bool,
) -> None:
    """Build the sidecar of DATASET (paths or patterns; several are the shards of one dataset).

    The sidecar tells where each sample lies, so that opening the dataset needs no search. By itself it is kept in the
    cache directory of the user.
    """
    import forebay
    from forebay.cli.output import bytes_text, print_json, print_pairs, progress

    opened = forebay.open(dataset, schema=schema, database=database)
    with progress() as report:
        found = opened.native.build_index(beside=beside, progress=report)
    if as_json:
        print_json(found)
        return
    excluded = ", ".join(f"{name} ({count})" for name, count in found["excluded"].items())
    print_pairs(
        [
            ("samples", found["samples"]),
            ("excluded records", excluded or "none"),
            (
                "read",
                f"{bytes_text(found['read_bytes'])} in {found['reads']} reads, {bytes_text(found['file_bytes'])} of data",
            ),
            ("seconds", f"{found['seconds']:.3f}"),
            ("sidecar", f"{found['sidecar']} ({bytes_text(found['sidecar_bytes'])})"),
        ]
    )
