"""Records of the golden RecordIO files, made from seeds: for their writer and the tests."""

from __future__ import annotations

import random
import struct

MAGIC = struct.pack("<I", 0xCED7230A)

# Kinds of files of image records: one label, five of them, a number that varies, one in a list.
HEADERS = ("scalar", "five", "varying", "single")


def plain_records() -> list[bytes]:
    """Return records of many lengths; each fourth holds the magic number, aligned to 4 and not."""
    draw = random.Random(1)
    records = [b"", MAGIC, MAGIC * 3, b"x" + MAGIC, MAGIC + b"\0" * 7]
    while len(records) < 120:
        data = bytearray(draw.randbytes(draw.choice((0, 1, 2, 3, 4, 20, 150, 151, 300))))
        if len(records) % 4 == 0:
            for _ in range(draw.randrange(1, 5)):
                at = draw.randrange(len(data) + 1)
                data[at:at] = MAGIC
        records.append(bytes(data))
    return records


def image_records(name: str) -> list[tuple[float | list[float], int, bytes]]:
    """Return label or labels, id and image of the records of one file."""
    draw = random.Random(name)
    records = []
    for number in range(40):
        labels = [
            draw.randrange(-1000, 1000) / 8 for _ in range({"five": 5, "single": 1}.get(name, number % 4 + 1))
        ]
        label: float | list[float] = labels[0] if name == "scalar" else labels
        image = draw.randbytes(96) if name == "five" else draw.randbytes(draw.randrange(200))
        # The magic number as an id: the header of such a record is in two parts.
        identity = 0xCED7230A if number % 8 == 3 else draw.randrange(1 << 40)
        records.append((label, identity, image))
    return records
