"""Print the packages of an extra of pyproject.toml, with nested extras, one per line.

The Makefile installs them before the extension is built, so that a change of Rust code does not ask
pip about Python packages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

OWN_GROUP = re.compile(r"^forebay\[(\w+)\]$")


def requirements(project: dict[str, object], group: str) -> list[str]:
    """Return the project's own dependencies and those of the group."""
    groups = project["optional-dependencies"]
    own = project["dependencies"]
    assert isinstance(groups, dict)
    assert isinstance(own, list)
    found = list(own)
    for requirement in groups[group]:
        if match := OWN_GROUP.match(requirement):
            found += requirements(project, match.group(1))
        else:
            found.append(requirement)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    print("\n".join(requirements(tomllib.loads(pyproject.read_text())["project"], sys.argv[1])))
