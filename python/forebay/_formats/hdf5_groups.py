"""Groups of an HDF5 file that are samples: ``/0/image``, ``/1/image``, ….

Such a file looks like one whose datasets are fields, since all of them may have the same first
dimension. ``sample_groups`` tells the two apart by the names and the contents of the groups.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SampleGroups", "sample_groups"]

Shape = tuple[int, ...]

# What a group with a number is called if it is a sample; a camera or a layer may be a field.
_SAMPLE_WORDS = {
    *("", "sample", "example", "instance", "item", "record", "case", "patient", "subject"),
    *("episode", "demo", "traj", "trajectory"),
}

# From this number on, groups of one kind are samples if there are more of them than rows.
_MANY = 16


@dataclass(frozen=True, slots=True)
class SampleGroups:
    """Groups with datasets of the same names."""

    groups: tuple[str, ...]
    """Their paths, by number where they have one, else by name."""
    members: tuple[str, ...]
    """Paths of the datasets that each has."""


def sample_groups(shapes: Mapping[str, Shape]) -> SampleGroups | None:
    """Return the groups of a file that are one sample each, if there are such.

    Parameters
    ----------
    shapes : mapping
        The shape of every dataset, by path.

    Returns
    -------
    SampleGroups or None
        The groups nearest to the root that have datasets in common, with as many axes, if more than
        that speaks for samples: their names have numbers and a word for a sample, or they hold
        scalars or datasets of different lengths, which are no fields; or they are many.
    """
    children: dict[str, dict[str, dict[str, Shape]]] = defaultdict(lambda: defaultdict(dict))
    for path, shape in shapes.items():
        parts = path.split("/")
        for depth in range(len(parts) - 1):
            parent, member = "/".join(parts[:depth]), "/".join(parts[depth + 1 :])
            children[parent][parts[depth]][member] = shape
    for parent in sorted(children, key=lambda path: (path.count("/") + bool(path), path)):
        groups = children[parent]
        members = _common_members(groups)
        if len(groups) > 1 and members and _are_samples(groups, members):
            ordered = sorted(groups, key=_number_or_name)
            return SampleGroups(
                tuple(f"{parent}/{name}" if parent else name for name in ordered), tuple(members)
            )
    return None


def _common_members(groups: Mapping[str, Mapping[str, Shape]]) -> list[str]:
    """Return the datasets that all groups have, with as many axes."""
    first, *others = groups.values()
    return [
        member
        for member, shape in first.items()
        if all(member in group and len(group[member]) == len(shape) for group in others)
    ]


def _are_samples(groups: Mapping[str, Mapping[str, Shape]], members: list[str]) -> bool:
    """Whether groups are samples, and their common datasets no fields."""
    shapes = {member: [group[member] for group in groups.values()] for member in members}
    rows = {member: {shape[0] for shape in found if shape} for member, found in shapes.items()}
    # A dataset that is there once more in each group may have rows of its own.
    differ = any(len(lengths) > 1 for lengths in rows.values())
    is_many = len(groups) >= _MANY and (differ or len(groups) > max(set().union(*rows.values()), default=0))
    numbered = [re.fullmatch(r"(\D*)\d+", name) for name in groups]
    words = {found[1].strip("_-. ").lower() for found in numbered if found}
    if not all(numbered) or len(words) > 1:
        return is_many
    return is_many or differ or words <= _SAMPLE_WORDS or not all(rows.values())


def _number_or_name(name: str) -> tuple[int, str]:
    found = re.search(r"\d+$", name)
    return int(found[0]) if found else 0, name
