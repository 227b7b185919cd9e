"""The code of docs/migrating.md that is to be written instead runs on small data."""

from __future__ import annotations

import ast
import io
import re
import tarfile

import numpy as np
import pytest
from PIL import Image

import forebay
import support
from forebay.tools.convert import convert
from forebay.tools.convert.source import open_source

PAGE = (support.ROOT / "docs/migrating.md").read_text()
BLOCKS = re.findall(r"^(Before|After):\n\n```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
SAMPLES, CLASSES = 130, 10


def jpeg(number):
    """Return a JPEG image."""
    file = io.BytesIO()
    Image.fromarray(np.full((80, 90, 3), number, "uint8")).save(file, "jpeg")
    return file.getvalue()


@pytest.fixture
def data(tmp_path):
    """The datasets that the page names, in the working directory."""
    work = tmp_path / "work"
    images = [jpeg(number) for number in range(SAMPLES)]
    for number, image in enumerate(images):
        folder = work / "images" / f"class-{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04}.jpg").write_bytes(image)
    for shard in range(2):
        with tarfile.open(work / f"train-{shard:04}.tar", "w") as archive:
            for number in range(shard, SAMPLES, 2):
                for name, content in (("jpg", images[number]), ("cls", str(number % CLASSES).encode())):
                    member = tarfile.TarInfo(f"{number:04}.{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    labels = np.arange(SAMPLES) % CLASSES
    np.savez(work / "train.npz", image=np.ones((SAMPLES, 32, 32), "float32"), label=labels)
    (tmp_path / "scratch").mkdir()
    return work


AFTER = [text for kind, text in BLOCKS if kind == "After"]
# tests/frameworks runs the others.
OF_TORCH = [text for text in AFTER if "forebay.torch" in text]


@pytest.mark.parametrize("text", [text for text in AFTER if text not in OF_TORCH], ids=["tf.data", "LitData"])
def test_the_code_to_write_instead_runs(text, data, daemon):
    run_page(text, data)


def run_page(text, data):
    """Run code of the page on small data."""
    if "tfrecord" in text:
        npz = data / "train.npz"
        convert(open_source(lambda: forebay.open(npz), [str(npz)], []), data / "train-0.tfrecord")
    steps = []

    def step(images, labels):
        assert len(images) == len(labels)
        assert set(map(int, labels)) <= set(range(CLASSES))
        steps.append(images.shape)

    smaller = text.replace("90", "2").replace("{0000..0131}", "{0000..0001}").replace("200GiB", "16MiB")
    # Only LitData writes its directories: a file with the same fields stands for it.
    smaller = smaller.replace('"train", 64', '"train.npz", 64')
    exec(
        compile(smaller.replace("/scratch/me", str(data.parent / "scratch")), "docs/migrating.md", "exec"),
        {"step": step},
    )
    epochs = {"for epoch in range(2)": 2, "for epoch in range(10)": 10}
    expected = next((count for mark, count in epochs.items() if mark in smaller), 1)
    # 130 samples are two batches of 64, and one of 2 where the last is not dropped.
    sizes = [64, 64] if 'last_batch="drop"' in smaller else [64, 64, 2]
    assert [shape[0] for shape in steps] == expected * sizes


def test_the_code_of_other_loaders_is_code():
    assert [kind for kind, _ in BLOCKS] == ["Before", "After"] * 4
    for _, text in BLOCKS:
        ast.parse(text)


def test_each_option_of_the_tables_exists():
    rows = [row.split("|")[2] for row in PAGE.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(?:[^`]*?[ (])?(\w+)=", row)}
    known = set(forebay.Loader.__init__.__annotations__) | {
        "samples",
        "window",
        "fields",
        "weights",
        "decode",
    }
    assert named
    assert named <= known
