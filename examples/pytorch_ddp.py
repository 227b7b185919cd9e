"""Train an image classifier with DistributedDataParallel, stop, and continue with the next batch.

    pip install torch pillow
    torchrun --nproc-per-node 2 examples/pytorch_ddp.py

The ranks find each other through torchrun. The same lines work with FSDP, on GPUs and on several
nodes; on one process without torchrun, too. The data are tar files as WebDataset reads them.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch.nn.parallel import DistributedDataParallel

import forebay.torch

CLASSES, SHARDS, IMAGES, SIZE, BATCH, EPOCHS = 10, 3, 64, 64, 8, 2
# The first training is stopped after this many steps.
STOP_AFTER = 17


# The engine decodes, crops at random, flips half of all images and normalizes, in its own threads.
# What is random depends on seed, epoch and sample alone: an image is augmented alike on any number
# of ranks and after a resume.
DECODE: dict[str, Any] = {
    "jpg": forebay.image(
        SIZE, resize="random-crop", scale=(0.25, 1), flip=True, layout="chw",
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    ),
    "cls": "int",
}  # fmt: skip


def train(data: list[Path], checkpoint: Path, stop_after: int | None = None) -> list[int]:
    """Train from the checkpoint, if there is one; return the sample ids that this rank got."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    model: Any = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(8, CLASSES),
    ).to(device)  # fmt: skip
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids: list[int] = []
    # On GPUs, device= copies batches ahead of the computation, through pinned memory.
    dataset = forebay.open(data, decode=DECODE)
    with forebay.torch.loader(dataset, BATCH, order="group", device=device, expected_epochs=EPOCHS) as loader:
        if checkpoint.exists():
            state = torch.load(checkpoint, map_location=device)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            loader.load_state_dict(state["loader"])
        # Where the state is from the middle of an epoch, its rest comes first.
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["jpg"]), batch["cls"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ids += batch.indices.tolist()
                if stop_after is not None and len(ids) == stop_after * BATCH:
                    # The state is the same on all ranks.
                    if loader.loader.world.rank == 0:
                        state = {"loader": loader.state_dict(), "model": model.state_dict()}
                        torch.save({**state, "optimizer": optimizer.state_dict()}, checkpoint)
                    if dist.is_initialized():
                        dist.barrier()
                    return ids
            print(f"rank {loader.loader.world.rank}, epoch {epoch}: loss {loss.item():.2f}")
    return ids


def write_shards(folder: Path) -> list[Path]:
    """Write tar files with images NUMBER.jpg and their classes NUMBER.cls."""
    rng = np.random.default_rng(0)
    paths = [folder / f"train-{shard:04}.tar" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        with tarfile.open(path, "w") as archive:
            for number in range(shard * IMAGES, (shard + 1) * IMAGES):
                height, width = rng.integers(SIZE, 2 * SIZE, 2)
                encoded = io.BytesIO()
                pixels = rng.integers(0, 256, (height, width, 3), "uint8")
                Image.fromarray(pixels).save(encoded, "JPEG")
                for suffix, value in (("jpg", encoded.getvalue()), ("cls", b"%d" % (number % CLASSES))):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(value)
                    archive.addfile(member, io.BytesIO(value))
    return paths


def main() -> None:
    """Compare a training that was stopped with one that was not."""
    if "LOCAL_RANK" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    with tempfile.TemporaryDirectory() as own:
        # Rank 0 writes the data; on a cluster they are there already.
        shared: list[Any] = [(Path(own), write_shards(Path(own))) if is_first else None]
        if dist.is_initialized():
            dist.broadcast_object_list(shared)
        folder, data = shared[0]
        whole = train(data, folder / "none.pt")
        stopped = train(data, folder / "stopped.pt", STOP_AFTER)
        stopped += train(data, folder / "stopped.pt")
        assert stopped == whole, "a training that is resumed gets other samples"
        print(f"{len(whole) // BATCH} steps, stopped after {STOP_AFTER}: the same samples as without a stop")
        if dist.is_initialized():
            # Until all ranks have read the files.
            dist.barrier()
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
