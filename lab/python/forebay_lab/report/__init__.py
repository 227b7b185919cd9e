"""Reports: the result of a bench or a demo, or the event log of an emulated file system, as a page.

The page stands alone: styles and pictures inside, no scripts, nothing fetched from anywhere. It is
made of figures (the list in `forebay_lab.report.figures`), each drawn by one function from the
result alone; a figure without data says why it is left out. All text that comes from the result is
escaped.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["render", "write"]


def render(result: Mapping[str, Any]) -> str:
    """Make the page of a result of the bench or the demo.

    Parameters
    ----------
    result
        What `forebay bench --json` or `forebay demo --json` prints; keys as in docs/metrics.md.

    Raises
    ------
    FormatError
        If it is neither; the message names the key.
    """
    from forebay_lab.report import data, page

    return page.render(data.from_json(result, "the result"))


def write(result: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Make the page of a result and write it to a file, which appears whole or not at all.

    Raises
    ------
    FormatError
        If it is not a result of the bench or the demo.
    OptionError
        If the file exists and is not an HTML page.
    OSError
        If the file cannot be written.
    """
    from forebay_lab.write_page import save

    save(render(result), Path(path))
