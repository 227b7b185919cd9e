"""The one section: programs that decode the same images.

- ``decoder``: the decoder of ``forebay.image`` alone, from memory, on as many threads as the loader
  (``crates/forebay-image/examples/throughput.rs``).
- ``forebay``: a loader of the tar file with ``decode=``.
- ``torch``: torch's DataLoader with two persistent workers, simplejpeg or torchvision.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import forebay
from forebay_lab.bench.turns import in_turn
from studies.harness import cargo
from studies.harness.sections import Row, Scope, Study

IMAGES = 2000
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
    program = str(cargo.example("forebay-image", "throughput"))

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
        with forebay.Loader(
            dataset, BATCH, order="shuffle", last_batch="partial", expected_epochs=1
        ) as loader:
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
    """A map-style dataset of image files for torch."""

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


def images(scope: Scope) -> list[Row]:
    """Images per second of each program, best of its rounds, over those of the decoder alone."""
    threads = min(len(os.sched_getaffinity(0)), 3)
    with tempfile.TemporaryDirectory() as folder:
        files, archive = write_images(Path(folder), scope.pick(IMAGES, 200))
        programs = {"decoder": of_decoder(files, threads), "forebay": of_forebay(archive)}
        if importlib.util.find_spec("torchvision"):
            for decoder in ("torchvision", "simplejpeg"):
                if importlib.util.find_spec(decoder):
                    programs[f"torch, {decoder}"] = of_torch(files, decoder)
        best = {name: max(rates) for name, rates in in_turn(programs, scope.repetitions).items()}
    return [
        {"name": name, "threads": threads, "images_s": rate, "decoder_share": rate / best["decoder"]}
        for name, rate in best.items()
    ]


STUDY = Study(sections={"images": images}, repetitions=5)
