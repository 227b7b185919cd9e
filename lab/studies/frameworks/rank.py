"""The process of one rank: ``python -m studies.frameworks.rank LOADER PLACE``.

It makes the loader, answers a line with a line of JSON, and ends with its standard input:

- `epochs FIRST COUNT`: iterate; the answer has the time, the samples and the sum of their numbers,
- `release`: let go of the data's pages.

Times are of the system's monotonic clock, which all processes share.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

import numpy as np

from studies.frameworks.place import Epochs, Place, as_array

__all__ = ["main"]

_HEAD = np.dtype("<u8").itemsize


def _iterate(loader: Epochs, kind: str, first: int, count: int) -> dict[str, Any]:
    samples = total = 0
    begun, before = time.monotonic(), getattr(loader, "excluded_s", 0.0)
    for epoch in range(first, first + count):
        for batch in loader.epoch(epoch):
            array = as_array(batch)
            samples += len(array)
            if kind == "raw":
                total += int(array[:, :_HEAD].copy().view("<u8").sum())
    # A row that measures itself leaves out what is not its work.
    ended = time.monotonic() - (getattr(loader, "excluded_s", 0.0) - before)
    return {
        "begun": begun,
        "ended": ended,
        "samples": samples,
        "total": total,
        "shape": array.shape[1:],
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What a framework prints goes to standard error.
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    place = Place(**json.loads(sys.argv[2]))
    loader: Epochs = getattr(importlib.import_module(f"studies.frameworks.loaders.{module}"), name)(place)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "release":
            loader.release()
            answer: dict[str, Any] = {}
        else:
            answer = _iterate(loader, place.kind, *map(int, numbers))
        print(json.dumps(answer), file=answers, flush=True)
    # Without the destructors of frameworks, some of which wait for threads.
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
