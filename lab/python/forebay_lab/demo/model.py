"""A small real model in numpy: two layers, trained by data-parallel SGD with momentum.

The model reduces an image to 16x16 grey values in integers and standardises it; a layer of
rectified units and a softmax follow. Weights, gradient and velocity are one flat array each; the
loss is the last value of the gradient's, so that one all-reduce per step suffices. All arrays are
allocated once, with equal alignment: two runs with the same batches compute the same bits, which
lets the demo compare losses with ``==``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay_lab.demo.data import CHANNELS, CLASSES, HEIGHT, WIDTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

HIDDEN = 128
"""Units of the hidden layer: about 98 % accuracy on held-out digits, three runs in a minute."""

_INPUTS = (HEIGHT // 2) * (WIDTH // 2)
_SUMMED = 4 * CHANNELS
_ALIGN_BYTES = 64


class Model:
    """The model of one rank.

    Parameters
    ----------
    batch_size
        Samples per rank and step.
    ranks
        Ranks that share a step; the gradient is their mean.
    seed
        Of the first weights; the same on all ranks.
    """

    def __init__(self, batch_size: int, ranks: int, seed: int) -> None:
        self._ranks = ranks
        self._weights = _aligned(_INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
        self._velocity = _aligned(len(self._weights))
        self.gradient = _aligned(len(self._weights) + 1)
        """The gradient and, as its last value, this rank's loss: the input of the all-reduce."""
        self._first, self._first_bias, self._second, self._second_bias = _parts(self._weights)
        self._to_first, self._to_first_bias, self._to_second, self._to_second_bias = _parts(
            self.gradient[:-1]
        )
        generator = np.random.default_rng([seed, 3])
        self._first[:] = generator.normal(0, (2 / _INPUTS) ** 0.5, self._first.shape)
        self._second[:] = generator.normal(0, (2 / HIDDEN) ** 0.5, self._second.shape)

        self._inputs = _aligned(batch_size, _INPUTS)
        self._hidden = _aligned(batch_size, HIDDEN)
        self._scores = _aligned(batch_size, CLASSES)
        self._to_hidden = _aligned(batch_size, HIDDEN)
        self._rows = np.arange(batch_size)
        self._halved = np.zeros((batch_size, CHANNELS, HEIGHT // 2, WIDTH), np.uint16)
        self._grey = np.zeros((batch_size, HEIGHT // 2, WIDTH), np.uint16)
        self._pooled = np.zeros((batch_size, HEIGHT // 2, WIDTH // 2), np.uint16)

    def learn(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        """Fill `gradient` from a batch: uint8 images [batch, 3, 32, 32], int64 labels [batch]."""
        count = len(labels)
        self._forward(images)
        scores = self._scores
        loss = -np.log(np.maximum(scores[self._rows, labels], 1e-12)).mean()
        scores[self._rows, labels] -= 1.0
        scores /= count
        np.matmul(self._hidden.T, scores, out=self._to_second)
        np.sum(scores, axis=0, out=self._to_second_bias)
        np.matmul(scores, self._second.T, out=self._to_hidden)
        self._to_hidden *= self._hidden > 0
        np.matmul(self._inputs.T, self._to_hidden, out=self._to_first)
        np.sum(self._to_hidden, axis=0, out=self._to_first_bias)
        self.gradient[-1] = loss

    def step(self, total: NDArray[np.float32], rate: float, momentum: float = 0.9) -> float:
        """Move the weights by the sum of all ranks' gradients; the mean loss before the move."""
        self._velocity *= momentum
        self._velocity -= np.float32(rate / self._ranks) * total[:-1]
        self._weights += self._velocity
        return float(total[-1]) / self._ranks

    def accuracy(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> float:
        """Share of images that the model names rightly; any number of images."""
        right, batch_size = 0, len(self._rows)
        for first in range(0, len(labels), batch_size):
            part = images[first : first + batch_size]
            full = np.zeros((batch_size, *part.shape[1:]), np.uint8)
            full[: len(part)] = part
            self._forward(full)
            named = self._scores[: len(part)].argmax(axis=1)
            right += int((named == labels[first : first + batch_size]).sum())
        return right / len(labels)

    def _forward(self, images: NDArray[np.uint8]) -> None:
        """Images to probabilities in `_scores`."""
        np.add(images[:, :, 0::2], images[:, :, 1::2], out=self._halved, dtype=np.uint16)
        np.add(self._halved[:, 0], self._halved[:, 1], out=self._grey)
        self._grey += self._halved[:, 2]
        np.add(self._grey[:, :, 0::2], self._grey[:, :, 1::2], out=self._pooled)
        self._inputs[:] = self._pooled.reshape(len(images), _INPUTS)
        self._inputs *= np.float32(1 / (_SUMMED * 64))
        self._inputs -= np.float32(1.0)
        np.matmul(self._inputs, self._first, out=self._hidden)
        self._hidden += self._first_bias
        np.maximum(self._hidden, 0, out=self._hidden)
        np.matmul(self._hidden, self._second, out=self._scores)
        self._scores += self._second_bias
        self._scores -= self._scores.max(axis=1, keepdims=True)
        np.exp(self._scores, out=self._scores)
        self._scores /= self._scores.sum(axis=1, keepdims=True)


def _aligned(*shape: int) -> NDArray[np.float32]:
    """Return zeros aligned to a cache line: every process takes the same vector code path."""
    count = int(np.prod(shape))
    raw = np.zeros(count * 4 + _ALIGN_BYTES, np.uint8)
    skip = -raw.ctypes.data % _ALIGN_BYTES
    return raw[skip : skip + count * 4].view(np.float32).reshape(shape)


def _parts(flat: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
    """Split a flat array into weight matrices and biases, as views: (first, bias, second, bias)."""
    shapes = ((_INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    parts, at = [], 0
    for shape in shapes:
        count = int(np.prod(shape))
        parts.append(flat[at : at + count].reshape(shape))
        at += count
    return tuple(parts)
