"""The command line of a page of results: sections by name, each printed under its heading."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Study = TypeVar("Study")


def run_sections(
    doc: str | None,
    sections: Mapping[str, Callable[[Study], None]],
    groups: Mapping[str, Sequence[str]],
    study: Callable[[bool], Study],
) -> None:
    """Run what the command line asks for; `study` is made of whether the data shall be tiny."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small data, one shape each: whether it runs")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"{', '.join((*groups, *sections))}; all"
    )
    options = parser.parse_args()
    names = [part for name in options.sections or sections for part in groups.get(name, (name,))]
    if unknown := [name for name in names if name not in sections]:
        parser.error(f"no section {', '.join(unknown)}: choose from {', '.join((*groups, *sections))}")
    made = study(options.tiny)
    for name in names:
        section = sections[name]
        meaning = getattr(section, "func", section).__doc__
        print(f"\n## {name}\n\n{meaning}", flush=True)
        section(made)
