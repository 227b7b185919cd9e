"""File systems of the papers, as TOML files that `forebay simulate` takes."""

from __future__ import annotations

import json
from typing import Any

from forebay_lab.pfs.start import Wanted
from studies.harness.sections import Scope


def spec_file(scope: Scope, name: str, preset: str, **fields: Any) -> str:
    """Write a preset with other numbers below the directory of data; return the file's path.

    Parameters
    ----------
    scope
        Of the section.
    name
        Of the file system.
    preset
        Whose numbers hold where `fields` has none.
    fields
        Keys of a spec (docs/cost-model.md).
    """
    spec = Wanted(preset=preset, overrides={**fields, "name": name}).resolve()
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in spec.items()
        if value is not None and key not in {"sources", "about"}
    ]
    path = scope.directory / "specs" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(path)
