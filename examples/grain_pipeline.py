"""Read batches in a pipeline of Grain, save its state, and continue with the next batch.

pip install grain
python examples/grain_pipeline.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import grain
import numpy as np

import forebay.grain

SAMPLES, BATCH = 256, 16


def pipeline(path: Path, name: str) -> grain.IterDataset:
    """Make the pipeline: batches of Forebay, a function of them, and a thread that reads ahead."""
    dataset = forebay.grain.dataset(path, BATCH, order="group", endless=True, name=name)
    scaled = dataset.map(lambda batch: {**batch, "x": batch["x"] / np.float32(255)})
    return grain.experimental.ThreadPrefetchIterDataset(scaled, prefetch_buffer_size=2)


def main() -> None:
    """Compare a pipeline that goes on with one that is restored."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.npz"
        np.savez(path, x=np.random.rand(SAMPLES, 8).astype(np.float32), label=np.arange(SAMPLES))
        batches = iter(pipeline(path, "train"))
        for _ in range(20):  # four batches into the second epoch
            next(batches)
        state = json.dumps(batches.get_state())
        following: list[Any] = [next(batches)["label"].copy() for _ in range(20)]
        batches.close()

        restored = iter(pipeline(path, "restored"))
        restored.set_state(json.loads(state))
        assert all(np.array_equal(next(restored)["label"], label) for label in following)
        restored.close()
        print("20 batches after the state: the same")

        # Where Grain chooses the samples, they are read by number.
        samples = grain.MapDataset.source(forebay.grain.source(path)).shuffle(seed=0).batch(BATCH)
        print(f"{len(samples)} batches by number, the first with labels {samples[0]['label'][:4]}")


if __name__ == "__main__":
    main()
