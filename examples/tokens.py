"""Read windows of tokens from a file of numbers.

    python examples/tokens.py

A window is a record of a raw file, so windows do not overlap: the last token of a window is a
target only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import forebay

WINDOW, WINDOWS, BATCH = 129, 500, 20


def main() -> None:
    """Iterate an epoch of inputs and targets."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        tokens = np.random.default_rng(0).integers(0, 50_000, WINDOWS * WINDOW).astype("<u2")
        # A raw file ends with a whole record: cut an odd tail when the file is written.
        tokens.tofile(path)

        dataset = forebay.open(path, format="raw", fields={"tokens": ("<u2", (WINDOW,))})
        with forebay.Loader(dataset, BATCH, order="shuffle") as loader:
            for batch in loader:
                window = batch["tokens"].astype("int64")
                inputs, targets = window[:, :-1], window[:, 1:]
                assert (inputs[:, 1:] == targets[:, :-1]).all()
            print(f"{len(loader)} steps of {inputs.shape} inputs and {targets.shape} targets")


if __name__ == "__main__":
    main()
