"""The engine as a row of the bench: `forebay.Loader` behind the same door as the baselines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import forebay
import forebay._job.world  # with the line above: otherwise the first loader of a rank pays for the import
import forebay.loader
from forebay_lab.bench.baselines import Place, Step
from forebay_lab.bench.facts import SCHEMA
from forebay_lab.bench.strategies import loader_options


class Rows:
    """The records of a step of several fields: per sample its fields' bytes, by field name."""

    def __init__(self, batch: forebay.Batch) -> None:
        self._fields = [batch[name] for name in sorted(batch)]

    def __len__(self) -> int:
        return len(self._fields[0])

    def __iter__(self) -> Iterator[bytes]:
        return (b"".join(row.tobytes() for row in rows) for rows in zip(*self._fields, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the step."""
        return sum(
            field.nbytes if hasattr(field, "nbytes") else sum(row.nbytes for row in field)
            for field in self._fields
        )


class Engine:
    """Batches of one rank from a loader."""

    def __init__(self, place: Place, strategy: str, order: str, epochs: int, comm: Any = None) -> None:
        world = forebay.World(
            rank=place.rank,
            size=place.ranks,
            local_rank=place.local_rank,
            local_size=place.local_ranks,
            node=f"node{place.node}",
            job=place.job,
            comm=comm,
        )
        self._loader = forebay.Loader(
            forebay.open(list(place.paths), schema=SCHEMA),
            batch_size=place.batch_size,
            order=order,
            seed=place.seed,
            **loader_options(strategy),
            expected_epochs=epochs,
            last_batch="fill",
            world=world,
            name="bench",
        )

    def epoch(self, number: int) -> Iterator[Step]:
        """Hand out views of the loader's own buffers."""
        self._loader.set_epoch(number)
        for batch in self._loader:
            yield batch.indices, batch["data"] if batch.keys() == {"data"} else Rows(batch)

    def level_bytes(self, epoch: int) -> dict[str, int] | None:
        """Return the bytes that each storage level has delivered to this rank for an epoch.

        None if the loader has read so far ahead that it no longer knows them.
        """
        stats = self._loader.stats()
        known: dict[int, dict[str, int]] = stats["level_bytes_by_epoch"]
        if epoch in known:
            return known[epoch]
        return None if known and epoch < min(known) else dict.fromkeys(stats["levels"], 0)

    def facts(self) -> dict[str, Any]:
        """Return the loader's statistics, choices, readers per node and shuffle quality."""
        loader = self._loader
        config = loader.config
        return {
            "stats": loader.stats(),
            "explain": loader.explain(),
            "readers": config.reading.readers,
            "shuffle_quality": asdict(config.order.shuffle_quality),
            "tiers": None if config.tiers is None else asdict(config.tiers),
        }

    def close(self) -> None:
        """Close the loader."""
        self._loader.close()
