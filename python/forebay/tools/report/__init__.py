"""Reports: what a bench measured, or what an emulated file system was asked for, as one HTML page.

The page stands alone: styles and pictures inside, no scripts, nothing fetched from anywhere. It is
made of figures (the list in `forebay.tools.report.figures`), each drawn by one function from the
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
    """Make the page of a bench result.

    Parameters
    ----------
    result
        What `forebay bench --json` prints; keys as in docs/metrics.md.

    Raises
    ------
    FormatError
        If it is not a bench result; the message names the key.
    """
    from forebay.tools.report import data, page

    return page.render(data.from_bench(result, "the bench result"))


def write(result: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Make the page of a bench result and write it to a file, which appears whole or not at all.

    Raises
    ------
    FormatError
        If it is not a bench result.
    OptionError
        If something else than a page is there.
    OSError
        If the file cannot be written.
    """
    from forebay.tools.write_page import save

    save(render(result), Path(path))
