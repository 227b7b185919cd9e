"""The engine's events in Python's ``logging``, under the name ``forebay``.

The native module logs events whenever Python code calls it or waits in it; engine threads never
wait for the interpreter. A record has the time of its event, and its fields as the dictionary
``record.fields``; docs/logging.md lists them.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from forebay.errors import OptionError

VARIABLE = "FOREBAY_LOG"
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_logger = logging.getLogger("forebay")
_logger.addHandler(logging.NullHandler())


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that writes to stderr in programs without logging of their own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.getLogger().handlers


def configure() -> None:
    """Set the level that ``FOREBAY_LOG`` names, and write to stderr where no handler is set up.

    Raises
    ------
    OptionError
        If it is no level.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return
    if name.lower() not in _LEVELS:
        raise OptionError(f"{VARIABLE}: expected one of {', '.join(_LEVELS)}; found {name!r}")
    _logger.setLevel(_LEVELS[name.lower()])
    handler = _ToStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(name)s %(levelname)s: %(message)s"))
    _logger.addHandler(handler)


def level() -> int:
    """Return the least level that is wanted."""
    return _logger.getEffectiveLevel()


def emit(
    number: int, target: str, message: str, fields: dict[str, Any], seconds: float, thread: str | None
) -> None:
    """Log an engine event: level, module, message, fields, time [s since 1970] and thread."""
    if not _logger.isEnabledFor(number):
        return
    text = " ".join([message, *(f"{name}={value}" for name, value in fields.items())])
    extra = {"fields": fields, "target": target}
    record = _logger.makeRecord(_logger.name, number, target, 0, text, (), None, None, extra)
    record.created = seconds
    record.msecs = seconds % 1 * 1000
    if thread is not None:
        record.threadName = thread
    _logger.handle(record)


def report_lost(events: int) -> None:
    """Log that events were lost because Python was not called in time to take them."""
    _logger.warning("%d events were lost: no call into forebay took them in time", events)
