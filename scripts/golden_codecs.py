"""Write the golden chunks of forebay-format: what h5py and hdf5plugin make of known data.

The output is `crates/forebay-format/tests/golden/codecs.json`.

Run it where both are installed, and put what it prints there.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import h5py
import hdf5plugin
import numpy as np

# Elements of a chunk: whole blocks and groups of bitshuffle, some left over, very few.
LENGTHS = (2125, 5)


def data(items: int, item_bytes: int) -> np.ndarray:
    """Return elements of which neighbours are alike; `tests/codecs.rs` makes the same."""
    numbers = np.arange(items, dtype=np.uint64)
    return (numbers * numbers // 5000).astype(f"<u{item_bytes}")


# fmt: off
PIPELINES: dict[str, tuple[int, dict[str, Any]]] = {
    "deflate": (4, {"compression": "gzip"}),
    "shuffle": (4, {"shuffle": True}),
    "shuffle of 2 bytes": (2, {"shuffle": True}),
    "shuffle of 8 bytes": (8, {"shuffle": True}),
    "fletcher32": (4, {"fletcher32": True}),
    "fletcher32 of odd lengths": (1, {"fletcher32": True}),
    "shuffle, deflate, fletcher32": (4, {"shuffle": True, "compression": "gzip", "fletcher32": True}),
    "lzf": (4, {"compression": "lzf"}),
    "shuffle, lzf": (8, {"shuffle": True, "compression": "lzf"}),
    "lz4": (4, hdf5plugin.LZ4()),
    "lz4 in blocks of 1000 bytes": (4, hdf5plugin.LZ4(nbytes=1000)),
    "bitshuffle": (4, hdf5plugin.Bitshuffle(cname="none")),
    "bitshuffle of 1 byte": (1, hdf5plugin.Bitshuffle(cname="none")),
    "bitshuffle in blocks of 64": (8, hdf5plugin.Bitshuffle(nelems=64, cname="none")),
    "bitshuffle, lz4": (4, hdf5plugin.Bitshuffle(cname="lz4")),
    "bitshuffle, lz4 in blocks of 256": (2, hdf5plugin.Bitshuffle(nelems=256, cname="lz4")),
    "bitshuffle, zstd": (8, hdf5plugin.Bitshuffle(cname="zstd")),
    "zstd": (4, hdf5plugin.Zstd()),
    "shuffle, zstd": (4, {"shuffle": True, **hdf5plugin.Zstd()}),
}
# fmt: on


def main() -> None:
    """Write all chunks to stdout."""
    found = []
    for name, (item_bytes, options) in PIPELINES.items():
        for items in LENGTHS:
            with h5py.File(io.BytesIO(), "w") as file:
                values = data(items, item_bytes)
                dataset = file.create_dataset("x", data=values, chunks=(items,), **dict(options))
                mask, encoded = dataset.id.read_direct_chunk((0,))
                plist = dataset.id.get_create_plist()
                filters = [plist.get_filter(place) for place in range(plist.get_nfilters())]
            found.append(
                {
                    "name": f"{name}, {items} items",
                    "item_bytes": item_bytes,
                    "items": items,
                    "mask": mask,
                    "filters": [
                        {"id": code, "name": text.decode().split(";")[0], "values": list(values)}
                        for code, _, values, text in filters
                    ],
                    "encoded": encoded.hex(),
                }
            )
    lines = ",\n".join(json.dumps(one) for one in found)
    sys.stdout.write(f"[\n{lines}\n]\n")


main()
