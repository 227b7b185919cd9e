"""Functions of samples that return tensors; worker processes import this module."""

from __future__ import annotations

import torch


def tensors(sample):
    return {"x": torch.from_numpy(sample["data"]).float(), "n": torch.tensor(3)}


def with_gradients(sample):
    return torch.zeros(3, requires_grad=True)
