"""Images per second of ``decode=``: ``python lab/studies/images.py``.

JPEGs of 500x375 pixels and quality 90, cut out of scikit-learn's two photographs, become random
crops of 224x224 pixels. Programs take turns, one epoch each, from a warm page cache:

- ``decoder``: the decoder of ``forebay.image`` alone, from memory, on as many threads as the loader
  (``crates/forebay-image/examples/throughput.rs``, which cargo builds).
- ``forebay``: a loader of the tar file with ``decode=``.
- ``torch``: torch's DataLoader with two persistent workers, simplejpeg or torchvision, where these
  packages are installed (``.venv-frameworks``).

The figure is the best of the rounds. Ratios of one run are what counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import forebay

ROOT = Path(__file__).resolve().parents[2]
SIZE = 224
BATCH = 64
WORKERS = 2


def write_images(folder: Path, count: int) -> tuple[Path, Path]:
    """Write the images as files and as a tar file; return the folder of the files, and the tar."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    rng = np.random.default_rng(0)
    files = folder / "files"
    files.mkdir()
    with tarfile.open(folder / "images.tar", "w") as archive:
        for number in range(count):
            photograph = photographs[number % 2]
            part = rng.uniform(0.8, 1)
            width, height = int(photograph.width * part), int(photograph.height * part)
            left, top = (
                int(rng.integers(0, rest + 1))
                for rest in (photograph.width - width, photograph.height - height)
            )
            image = photograph.crop((left, top, left + width, top + height))
            into = io.BytesIO()
            image.resize((500, 375), Image.Resampling.BICUBIC).save(into, "JPEG", quality=90)
            (files / f"{number:05d}.jpg").write_bytes(into.getvalue())
            for name, data in (("jpg", into.getvalue()), ("cls", b"%d" % (number % 1000))):
                member = tarfile.TarInfo(f"{number:05d}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return files, folder / "images.tar"


def of_decoder(files: Path, threads: int) -> Callable[[], float]:
    """Return what measures the decoder alone."""
    command = ["cargo", "build", "--quiet", "--release", "-p", "forebay-image", "--example", "throughput"]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = str(target / "release/examples/throughput")

    def measure() -> float:
        found = subprocess.run([program, str(files), str(threads), "1"], check=True, capture_output=True)
        return float(found.stdout)

    return measure


def of_forebay(archive: Path) -> Callable[[], float]:
    """Return what measures an epoch of a loader; its threads are the cores, at most three."""
    decode = {"jpg": forebay.image(SIZE, resize="random-crop", flip=True), "cls": "int"}
    dataset = forebay.open(archive, decode=decode)

    def measure() -> float:
        # One epoch, so that nothing is decoded ahead while another program is measured.
        with forebay.Loader(dataset, BATCH, order="shuffle", last_batch="partial", epochs=1) as loader:
            return epoch(loader)

    return measure


def of_torch(files: Path, decoder: str) -> Callable[[], float]:
    """Return what measures an epoch of torch's DataLoader."""
    import torch.utils.data

    loader = torch.utils.data.DataLoader(
        Images(sorted(map(str, files.iterdir())), decoder),
        batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, prefetch_factor=4,
    )  # fmt: skip
    return lambda: epoch(loader)


class Images:
    """A map-style data set of image files for torch."""

    def __init__(self, paths: list[str], decoder: str) -> None:
        self.paths, self.decoder = paths, decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        import torch
        from torchvision.transforms import v2

        torch.set_num_threads(1)
        data = Path(self.paths[index]).read_bytes()
        if self.decoder == "simplejpeg":
            import simplejpeg

            image = torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)
        else:
            from torchvision.io import decode_jpeg

            image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return v2.RandomHorizontalFlip()(v2.RandomResizedCrop(SIZE, antialias=True)(image))


def epoch(loader: Any) -> float:
    """Iterate an epoch; return images per second."""
    images, begun = 0, time.perf_counter()
    for batch in loader:
        images += len(batch["cls"] if isinstance(batch, dict) else batch)
    return images / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=2000, help="images [default: 2000]")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each program [default: 5]")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    threads = min(len(os.sched_getaffinity(0)), 3)
    with tempfile.TemporaryDirectory() as folder:
        files, archive = write_images(Path(folder), arguments.images)
        programs = {"decoder": of_decoder(files, threads), "forebay": of_forebay(archive)}
        if importlib.util.find_spec("torchvision"):
            for decoder in ("torchvision", "simplejpeg"):
                if importlib.util.find_spec(decoder):
                    programs[f"torch, {decoder}"] = of_torch(files, decoder)
        best = dict.fromkeys(programs, 0.0)
        for number in range(arguments.rounds + 1):
            for name, measure in programs.items():
                found = measure()
                # The first round is the warm-up.
                best[name] = max(best[name], found) if number else 0.0
    result = {"threads": threads, "images": arguments.images, "images_per_second": best}
    result["of_decoder"] = best["forebay"] / best["decoder"]
    if others := [rate for name, rate in best.items() if name.startswith("torch")]:
        result["of_best_other"] = best["forebay"] / max(others)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
