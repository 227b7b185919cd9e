"""``forebay costs``: what the processors of this machine take for the steps of a loader."""

from __future__ import annotations

from pathlib import Path

import click

from forebay.cli.commands import as_json


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write them to this file, for forebay simulate --costs.",
)
@as_json
def command(output: Path | None, as_json: bool) -> None:
    """Measure the processor costs of this machine, which simulated jobs are computed with.

    A real loader delivers small samples from a temporary folder, which takes about ten seconds;
    other programs that run meanwhile spoil the numbers. docs/simulate.md explains them.
    """
    from forebay.cli.output import print_json, print_table, print_wrapped, progress
    from forebay_lab.simulate import costs
    from forebay_lab.simulate.measure_costs import measure

    if output is not None:
        costs.check(output)
    with progress() as show:
        found, notes = measure(show)
    if output is not None:
        costs.write(found, output)
    if as_json:
        print_json(
            {"costs": found.as_json(), "notes": notes, "output": None if output is None else str(output)}
        )
        return
    default = costs.Costs.default()
    print_wrapped(f"measured on {found.machine}; default: {default.machine}")
    rows = [(key, f"{found.number(key):.4g}", f"{default.number(key):.4g}") for key in costs.MEANINGS]
    print_table(("cost", "here", "default"), rows)
    for note in notes:
        print_wrapped(f"not measured: {note}")
    if output is not None:
        click.echo(f"wrote {output}")
