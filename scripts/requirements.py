"""Print the packages of an extra of forebay, with nested extras, one per line.

Extras of forebay-lab are resolved too; the two distributions themselves are left out.

The Makefile installs them before the extension is built, so that a change of Rust code does not ask
pip about Python packages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {"forebay": ROOT / "pyproject.toml", "forebay-lab": ROOT / "lab/pyproject.toml"}
OWN = re.compile(r"^(forebay(?:-lab)?)(?:\[(\w+)\])?$")


def requirements(name: str, group: str | None) -> list[str]:
    """Return what a distribution depends on, and what the group does."""
    project = tomllib.loads(PROJECTS[name].read_text())["project"]
    found: list[str] = []
    for requirement in [
        *project["dependencies"],
        *(project["optional-dependencies"][group] if group else ()),
    ]:
        found += requirements(*match.groups()) if (match := OWN.match(requirement)) else [requirement]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    print("\n".join(requirements("forebay", sys.argv[1])))
