"""Batches in the tree functions of torch and JAX: ``tree_map`` reaches their arrays.

Both take a subclass of a dictionary or a tuple for a leaf unless it is registered. So the classes
of batches are registered with each library that the program has imported; none is imported for it.

torch's functions keep ``indices`` and ``position``. JAX compiles a function for each different form
of its arguments and gives the results the form of the first call; there they become None.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from forebay._iteration import Batch, BatchTuple, marked_as

__all__ = ["register"]

# Pairs of a library and a class.
_registered: set[tuple[str, type]] = set()


class _Marks:
    """The indices and the position of a batch, which do not belong to its form."""

    __slots__ = ("batch",)

    def __init__(self, batch: Batch | BatchTuple) -> None:
        # Not the batch itself, whose arrays would hold its buffer.
        self.batch = marked_as(BatchTuple(), batch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Marks)

    def __hash__(self) -> int:
        return 0


def register(*kinds: type[Batch | BatchTuple]) -> None:
    """Register classes of batches with torch and JAX, if they are imported.

    Parameters
    ----------
    *kinds : type
        The classes. Default: those of a :class:`forebay.Loader`.
    """
    for library, module, registers in (
        ("torch", sys.modules.get("torch.utils._pytree"), _with_torch),
        ("jax", sys.modules.get("jax.tree_util"), _with_jax),
    ):
        for kind in kinds or (Batch, BatchTuple):
            # A library whose import is under way may lack the functions still.
            if module is None or (library, kind) in _registered:
                continue
            _registered.add((library, kind))
            registers(module, kind)


def _parts(batch: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the children of a node and their keys, in the order that JAX gives a dictionary."""
    if isinstance(batch, dict):
        keys = tuple(sorted(batch, key=str))
        return [batch[key] for key in keys], keys
    return list(batch), tuple(range(len(batch)))


def _made(kind: Any, keys: tuple[Any, ...], children: Iterable[Any]) -> Any:
    return kind(zip(keys, children, strict=True)) if issubclass(kind, dict) else kind(children)


def _with_torch(pytree: Any, kind: Any) -> None:
    def flatten(batch: Any) -> tuple[list[Any], Any]:
        children, keys = _parts(batch)
        return children, (keys, _Marks(batch))

    def flatten_with_keys(batch: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, context = flatten(batch)
        of_torch = map(pytree.MappingKey if issubclass(kind, dict) else pytree.SequenceKey, context[0])
        return list(zip(of_torch, children, strict=True)), context

    def unflatten(children: Iterable[Any], context: Any) -> Any:
        keys, marks = context
        return marked_as(_made(kind, keys, children), marks.batch)

    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )


def _with_jax(tree_util: Any, kind: Any) -> None:
    def flatten(batch: Any) -> tuple[list[Any], Any]:
        return _parts(batch)

    def flatten_with_keys(batch: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, keys = _parts(batch)
        of_jax = map(tree_util.DictKey if issubclass(kind, dict) else tree_util.SequenceKey, keys)
        return list(zip(of_jax, children, strict=True)), keys

    def unflatten(keys: Any, children: Iterable[Any]) -> Any:
        return _made(kind, keys, children)

    tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
