"""Stop in the middle of an epoch, and continue with exactly the next batch.

Run it as follows; it prints where the first run stops and where the second continues:

    python examples/resume.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import forebay

SAMPLES, BATCH, EPOCHS = 1_000, 32, 3
# The first run ends after this many steps.
STOP_AFTER = 40


def make_loader(path: Path) -> forebay.Loader:
    """Make the loader of both runs, with the same options."""
    return forebay.Loader(path, BATCH, order="shuffle", seed=7, expected_epochs=EPOCHS)


def train(path: Path, checkpoint: Path, stop_after: int | None = None) -> list[list[int]]:
    """Iterate from the checkpoint, if there is one; return the sample ids of each step."""
    steps: list[list[int]] = []
    with make_loader(path) as loader:
        if checkpoint.exists():
            state = json.loads(checkpoint.read_text())
            loader.load_state_dict(state)
            print(f"continue at epoch {state['epoch']}, step {state['step']}")
        # loader.epoch is the epoch that the next iteration delivers, or the rest of it.
        while loader.epoch < EPOCHS:
            for batch in loader:
                steps.append(batch.indices.tolist())
                # The state after this batch. It is a small dictionary of numbers and strings, so
                # it may be part of any checkpoint, for example torch.save's.
                checkpoint.write_text(json.dumps(loader.state_at(batch.position)))
                if len(steps) == stop_after:
                    print(f"stop after epoch {batch.position.epoch}, step {batch.position.step}")
                    return steps
    return steps


def main() -> None:
    """Compare a training that was stopped with one that was not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.npy"
        np.save(path, np.random.default_rng(0).random((SAMPLES, 16), "float32"))
        whole = train(path, Path(folder) / "whole.json")
        stopped = train(path, Path(folder) / "stopped.json", STOP_AFTER)
        stopped += train(path, Path(folder) / "stopped.json")
    assert stopped == whole
    print(f"all {len(whole)} steps are those of a training without a stop")


if __name__ == "__main__":
    main()
