"""Histories of LMDB databases: a description, the writer that follows it, and its recipe."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb

# Room for the largest database [bytes]; the file takes what is used.
MAP_BYTES = 1 << 30

KEYS = ("%08d", "%05d", "image-%09d.jpg", "caffe")
VALUES = ("equal", "border", "no bytes", "small", "large", "mixed")
COMMITS = (1, 7, 100, 1000, None, "irregular")


@dataclass
class History:
    """Records put in the order of their keys, and nothing else."""

    keys: list[bytes]
    sizes: list[int]
    # Records in each transaction.
    transactions: list[int]
    append: bool = False
    # Whether LMDB 1.0 writes, not 0.9.
    new_library: bool = False
    database: str | None = None
    own_transaction: bool = True
    # Where keys follow a pattern, that; where commits follow a rhythm, that, or 0 for one
    # transaction.
    pattern: str | None = None
    rhythm: int | None = None
    name: str = ""
    notes: dict[str, Any] = field(default_factory=dict)

    def values(self) -> list[bytes]:
        """Values that tell themselves apart."""
        return [
            number.to_bytes(8, "little")[:size].ljust(size, b".") for number, size in enumerate(self.sizes)
        ]

    def open(self, path: Path) -> lmdb.Environment:
        library = {"lib_version": 1} if self.new_library else {}
        return lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=4, sync=False, **library)

    def write(self, path: Path) -> Path:
        """Write the database."""
        values = self.values()
        with self.open(path) as environment:
            handle = None
            if self.database and self.own_transaction:
                handle = environment.open_db(self.database.encode())
            first = 0
            for count in self.transactions:
                with environment.begin(write=True) as transaction:
                    if self.database and handle is None:
                        handle = environment.open_db(self.database.encode(), txn=transaction)
                    for number in range(first, first + count):
                        transaction.put(self.keys[number], values[number], append=self.append, db=handle)
                first += count
        return path

    def declare(self, directory: Path) -> Path:
        """Write the recipe, with its lists beside it."""
        lines = [f"append = {str(self.append).lower()}"]
        if self.pattern:
            lines.append(f'keys = "{self.pattern}"')
        else:
            lines.append(f"keys = {lengths(directory / 'keys.txt', list(map(len, self.keys)))}")
        lines.append(f"values = {lengths(directory / 'values.txt', self.sizes)}")
        if self.database:
            lines.append(f"database_own_transaction = {str(self.own_transaction).lower()}")
        if self.rhythm is None:
            lines.append(f"first_commits = {self.transactions}")
        elif self.rhythm:
            lines.append(f"commit_every = {self.rhythm}")
        recipe = directory / "recipe.toml"
        recipe.write_text("\n".join(lines) + "\n")
        return recipe


def lengths(path: Path, values: list[int]) -> str:
    """Declare lengths: one number, or a file of them."""
    if len(set(values)) == 1:
        return str(values[0])
    path.write_text("".join(f"{value}\n" for value in values))
    return f'{{lengths = "{path.name}"}}'


def generate(seed: int) -> History:
    """Make up a history; neighbouring seeds go through all kinds of keys, values and commits."""
    rng = random.Random(seed)
    kind = KEYS[seed % len(KEYS)]
    value = VALUES[seed // len(KEYS) % len(VALUES)]
    commit = COMMITS[seed // (len(KEYS) * len(VALUES)) % len(COMMITS)]
    count = rng.choice([1, 2, 50, 157, 400, 1000, 2500])
    if kind == "caffe":
        keys = [
            b"%08d_n%d/%s.JPEG" % (number, number % 7, b"x" * rng.randrange(30)) for number in range(count)
        ]
    else:
        keys = [(kind % number).encode() for number in range(count)]
    history = History(
        keys=keys,
        sizes=sizes(rng, value, count),
        transactions=transactions(rng, commit, count),
        append=rng.random() < 0.5,
        new_library=rng.random() < 0.35,
        database="images" if rng.random() < 0.3 else None,
        own_transaction=rng.random() < 0.5,
        pattern=None if kind == "caffe" else kind,
        rhythm=None if commit == "irregular" else commit or 0,
    )
    history.name = f"{seed}: {count} records, {kind}, {value}, commits {commit}"
    return history


def sizes(rng: random.Random, kind: str, count: int) -> list[int]:
    """Lengths of values."""
    match kind:
        case "equal":
            return [rng.choice([20, 200, 3073, 3074, 20_000])] * count
        case "border":
            # Where a value leaves the leaf, or needs another page of its own, in either library.
            borders = [2018, 2019, 2022, 2023, 4072, 4073, 4080, 4081]
            return [rng.choice(borders) - rng.choice([0, 0, 6, 19]) for _ in range(count)]
        case "no bytes":
            return [0] * count
        case "small":
            return [rng.randrange(1500) for _ in range(count)]
        case "large":
            return [int(rng.lognormvariate(9, 0.5)) for _ in range(count)]
    return [int(rng.lognormvariate(7, 1)) for _ in range(count)]


def transactions(rng: random.Random, commit: Any, count: int) -> list[int]:
    """Sizes of the transactions."""
    if commit is None:
        return [count]
    if commit != "irregular":
        return [min(commit, count - first) for first in range(0, count, commit)]
    most = rng.choice([20, 400, 2000])
    found = []
    while sum(found) < count:
        found.append(min(count - sum(found), rng.randrange(1, most)))
    return found


def repaired(content: bytearray) -> bytes:
    """Return a kept recipe with the right checksum (CRC-32C) at its end."""
    crc = 0xFFFFFFFF
    for byte in content[:-4]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return bytes(content[:-4]) + (crc ^ 0xFFFFFFFF).to_bytes(4, "little")
