"""tf.data over TFRecord files, as TensorFlow's guide has it.

The pipeline enumerates, shards by record, batches and prefetches.

Every rank reads all files and keeps every W-th record, which is what `shard` behind
`TFRecordDataset` does. The last step is filled up from the start of the rank's own records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay_lab.bench.baselines import Baseline, Place, Step


class TfData:
    """One rank's pipeline."""

    def __init__(self, place: Place) -> None:
        import tensorflow as tf

        records = tf.data.TFRecordDataset(list(place.paths)).enumerate().shard(place.ranks, place.rank)
        self._batches = records.repeat().batch(place.batch_size).take(place.steps).prefetch(tf.data.AUTOTUNE)

    def epoch(self, number: int) -> Iterator[Step]:
        """Walk once over the files."""
        del number  # Every epoch is the same walk.
        for ids, records in self._batches.as_numpy_iterator():
            yield ids, list(records)

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Let go of the pipeline."""
        del self._batches


BASELINES = (
    Baseline(
        name="tfdata",
        order="tfdata-shard",
        about="tf.data.TFRecordDataset, sharded by record, prefetched",
        open=TfData,
        modules=("tensorflow",),
        formats=("tfrecord",),
        several=True,
    ),
)
