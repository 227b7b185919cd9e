"""Mix two datasets of tokens in fixed proportions, stop, and continue with the next batch.

python examples/mixture.py
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np

import forebay

WINDOW, BATCH = 128, 20
# Windows of each source, and its share of the samples.
SOURCES = {"web": (5_000, 0.7), "code": (600, 0.25), "books": (300, 0.05)}


def main() -> None:
    """Iterate 200 steps, and the next 200 from the state."""
    with tempfile.TemporaryDirectory() as folder:
        sources = {}
        for name, (windows, _) in SOURCES.items():
            path = Path(folder) / f"{name}.bin"
            np.random.default_rng(0).integers(0, 50_000, windows * WINDOW).astype("<u2").tofile(path)
            sources[name] = forebay.tokens(path, WINDOW, dtype="u2")
        mixture = forebay.mix(sources, weights=[share for _, share in SOURCES.values()], stop="never")

        with forebay.Loader(mixture, BATCH, order="shuffle", seed=1) as loader:
            print(loader.explain())
            counts = np.zeros(len(sources), int)
            for batch in itertools.islice(loader, 200):
                numbers, _ = mixture.source_of(batch.indices)
                counts += np.bincount(numbers, minlength=len(sources))
            state = loader.state_dict()

        for name, (_, share), count in zip(sources, SOURCES.values(), counts, strict=True):
            print(f"{name}: {count} of {counts.sum()} samples, {share:.0%} wanted")
            assert abs(count - share * counts.sum()) < 2

        with forebay.Loader(mixture, BATCH, order="shuffle", seed=1, name="resumed") as loader:
            loader.load_state_dict(state)
            for batch in itertools.islice(loader, 200):
                assert batch["tokens"].shape == (BATCH, WINDOW)
            print(f"went on to step {loader.state_dict()['step']}")


if __name__ == "__main__":
    main()
