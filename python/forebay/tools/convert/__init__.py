"""Writing a dataset in another format: what ``forebay convert`` does.

:mod:`~forebay.tools.convert.source` reads samples through :func:`forebay.open`, in order, a batch
at a time; :mod:`~forebay.tools.convert.target` finds the format that is wanted and puts the
finished file in its place; beside them is one module for each format that is written, with the
format's own library. A module has two functions: ``check`` refuses what the format cannot hold,
before anything is written, and tells what will not come back as it was; ``write`` writes.
"""

from forebay.tools.convert.target import TARGETS, Converted, convert

__all__ = ["TARGETS", "Converted", "convert"]
