"""tf.data over TFRecord shards: interleaved reads, a shuffle buffer, prefetch, autotuned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from studies.frameworks.place import Place

__all__ = ["TFRecord"]

BUFFER = 1000
CROP = 224


class TFRecord:
    def __init__(self, place: Place) -> None:
        names = place.shards("samples", "tfrecord")
        dataset = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names))
        dataset = dataset.interleave(
            lambda name: tf.data.TFRecordDataset(name, buffer_size=1 << 20),
            cycle_length=min(len(names), 4),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        dataset = dataset.shuffle(BUFFER)
        if place.kind == "raw":
            # One call of decode_raw for a batch.
            dataset = dataset.batch(place.batch).map(_raw, num_parallel_calls=tf.data.AUTOTUNE)
        else:
            dataset = dataset.map(_crop, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
            dataset = dataset.batch(place.batch)
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
        options = tf.data.Options()
        if threads := place.settings.get("threads"):
            options.threading.private_threadpool_size = threads
        self._dataset = dataset.with_options(options)

    def epoch(self, number: int) -> Iterator[Any]:
        return iter(self._dataset)

    def release(self) -> None:
        pass


def _raw(records: Any) -> Any:
    return tf.io.decode_raw(records, tf.uint8)


def _crop(record: Any) -> Any:
    """Decode a random rectangle and resize it, as examples of ResNet do.

    The operation decodes at 1/2, 1/4 and 1/8 only: too small for 224 of 375 pixels.
    """
    shape = tf.io.extract_jpeg_shape(record)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.io.decode_and_crop_jpeg(record, window, channels=3, dct_method="INTEGER_FAST")
    return tf.cast(tf.image.resize(image, (CROP, CROP), method="bilinear"), tf.uint8)
