"""What may be written for an option: a name, an object, ``name:key=value``, or a TOML table.

Each function takes the origin of a value and the value, and returns what stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from forebay import _native, _renamed
from forebay._core import OptionError, did_you_mean, option_error
from forebay._given_order import Given, Weighted
from forebay._options.parameters import (
    AUTO,
    ORDER_KINDS,
    OrderKind,
    Store,
    Strategy,
    Tier,
    refuse_old_parameters,
)
from forebay._options.scalars import byte_count, check, choice, flag, number, same

__all__ = [
    "BAD_SAMPLES",
    "COLLATES",
    "LASTS",
    "ORDERS",
    "PRESETS",
    "checked",
    "collate_of",
    "from_to",
    "last_batch_of",
    "one_of",
    "order_of",
    "store_of",
    "strategy_of",
    "tiers_of",
]

ORDERS, LASTS, BAD_SAMPLES = (
    tuple(_native.option_words(name)) for name in ("order", "last_batch", "bad_samples")
)
COLLATES = ("stack", "pad", "list", "ragged")
# Presets by name; forebay_lab has those of papers.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "forebay": {},
    "mmap": {"access": "mmap"},
    "pread": {"access": "pread"},
    "io_uring": {"access": "io_uring"},
}
# Names that forebay_lab adds, for a hint.
_OF_LAB = (
    "lmdb", "lmm", "lmm-dm", "lmm-dio", "lmm-dio-prov", "lmm-dio-prov-coal", "lmm-dio-prov-coal-stag",
    "async", "async-db",
)  # fmt: skip

_Kind = TypeVar("_Kind", bound=OrderKind | Strategy | Store)


def checked(name: str, convert: Callable[[object], object]) -> Callable[[str, object], Any]:
    return lambda origin, value: check(origin, name, convert(value))


def one_of(valid: Sequence[str]) -> Callable[[str, object], str]:
    return lambda name, value: choice(name, value, valid)


def _details(origin: str, text: str, kind: type[OrderKind | Strategy | Store]) -> dict[str, Any]:
    """Read ``key=value,key=value``."""
    parts = [part.partition("=") for part in filter(None, text.split(","))]
    _check_keys(origin, [key for key, _, _ in parts], kind)
    return {key: number(flag(value)) for key, _, value in parts}


def _make(origin: str, kind: type[_Kind], details: Mapping[str, Any]) -> _Kind:
    """Make an order or a strategy from parameters that came from ``origin``."""
    try:
        return kind(**details)
    except OptionError as error:
        if origin.endswith("="):
            raise  # an argument: the parameter says it all
        raise option_error(f"{origin}: {error}") from error


def order_of(name: str, value: object) -> str | OrderKind | Given | Weighted | Callable[[int], Any]:
    """Accept a name, an order, a function, ``group:samples=512,window=4``, or a TOML table."""
    if isinstance(value, OrderKind | Given | Weighted) or (callable(value) and not isinstance(value, type)):
        return value
    if isinstance(value, Mapping):
        details = dict(value)
        kind = details.pop("kind", "group")
        if details and kind in ORDER_KINDS:
            _check_keys(name, details, ORDER_KINDS[kind])
            return _make(name, ORDER_KINDS[kind], details)
        value = kind
    if isinstance(value, str) and ":" in value:
        kind, _, text = value.partition(":")
        if kind in ORDER_KINDS:
            return _make(name, ORDER_KINDS[kind], _details(name, text, ORDER_KINDS[kind]))
    if value not in ORDERS:
        raise option_error(
            f"{name}: expected one of {', '.join(ORDERS)}, forebay.Group(...), forebay.LocalShuffle(...), "
            f"forebay.Opportunistic(...), forebay.Given(...), forebay.Weighted(...) or a function of the epoch; "
            f"found {value!r}"
        )
    return str(value)


def store_of(origin: str, value: object) -> Store | None:
    """Accept a size, ``auto``, ``none``, a `Store`, ``auto:on_lost=source``, or a TOML table."""
    if isinstance(value, Store) or value == "none":
        return value if isinstance(value, Store) else None
    details: dict[str, Any] = {}
    if isinstance(value, Mapping):
        details = dict(value)
        _check_keys(origin, details, Store)
    else:
        if isinstance(value, str) and ":" in value:
            value, _, text = value.partition(":")
            details = _details(origin, text, Store)
            if "size" in details:
                raise option_error(f"{origin}: the size stands before the colon; found {value}:{text}")
        if value != AUTO:
            value = check(origin, "store.size", byte_count(origin, value), value)
        details["size"] = value
    return _make(origin, Store, details)


def strategy_of(
    origin: str,
    value: object,
    presets: Mapping[str, Mapping[str, Any]] = PRESETS,
    kind: type[Strategy] = Strategy,
) -> Strategy:
    """Accept a name, a `Strategy`, ``forebay:access=pread,readers=2``, or a TOML table.

    Raises
    ------
    OptionError
        If it is none of these; the message begins with ``origin``.
    """
    if isinstance(value, Strategy):
        return value
    details: dict[str, Any] = {}
    if isinstance(value, Mapping):
        details = dict(value)
        value = details.pop("name", "forebay")
        _check_keys(origin, details, kind)
    elif isinstance(value, str) and ":" in value:
        value, _, text = value.partition(":")
        details = _details(origin, text, kind)
    if isinstance(value, str) and value not in presets and value not in _OF_LAB:
        if advice := _renamed.VALUES.get(("strategy", value)):
            raise option_error(f"{origin}: unknown strategy {value!r}", advice)
        raise option_error(
            f"{origin}: unknown strategy {value!r}{did_you_mean(value, tuple(presets))}",
            f"strategies: {', '.join(presets)}",
        )
    if value in _OF_LAB and value not in presets:
        raise option_error(
            f"{origin}: expected one of {', '.join(presets)}; found {value!r}",
            f"the strategies of papers are in forebay-lab: strategy=forebay_lab.strategy({value!r})",
        )
    return _make(origin, kind, {**presets[choice(origin, value, tuple(presets))], **details})


def _check_keys(name: str, found: Iterable[str], kind: type[OrderKind | Strategy | Store]) -> None:
    if issubclass(kind, Strategy):
        refuse_old_parameters(name, found)
    for key in found:
        choice(name, key, tuple(field.name for field in fields(kind)))


def from_to(least: int, most: int) -> Callable[[str, object], int]:
    def read(origin: str, value: object) -> int:
        found = number(value)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise option_error(f"{origin}: expected an integer from {least} to {most}, found {value!r}")
        return found

    return read


def collate_of(origin: str, value: object) -> str | Mapping[Any, Any] | Callable[[list[Any]], Any]:
    """Accept a name, a mapping of fields, ``image=stack,boxes=ragged``, or a function."""
    if isinstance(value, str) and "=" in value:
        pairs = [part.partition("=") for part in value.split(",")]
        value = {key.strip(): how.strip() for key, _, how in pairs}
        value = {int(key) if key.isdecimal() else key: how for key, how in value.items()}
    if isinstance(value, Mapping):
        if not value:
            raise option_error(f"{origin}: expected a field, found an empty mapping")
        return {
            ... if key == "*" else key: _field_collate(f"{origin}: {key}", one) for key, one in value.items()
        }
    return value if callable(value) else choice(origin, value, COLLATES)


def _field_collate(origin: str, value: object) -> str | Mapping[Any, Any]:
    if callable(value):
        raise option_error(
            f"{origin}: expected one of {', '.join(COLLATES)}, found a function",
            "a function takes the whole results: collate=function",
        )
    found = collate_of(origin, value)
    assert not callable(found)
    return found


def last_batch_of(origin: str, value: object) -> str:
    if isinstance(value, str) and (advice := _renamed.VALUES.get(("last_batch", value))):
        raise option_error(f"{origin}: expected one of {', '.join(LASTS)}; found {value!r}", advice)
    return str(checked("last_batch", same)(origin, value))


def tiers_of(origin: str, value: object) -> tuple[Tier, ...]:
    """Accept a list of tiers, a text with commas between them, or ``none``."""
    if value == "none":
        value = []
    elif isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    elif isinstance(value, Tier | Mapping):
        value = [value]
    if not isinstance(value, Iterable):
        raise option_error(f"{origin}: expected a list of tiers, found {value!r}", _tier_hint(origin))
    return tuple(_tier(origin, one) for one in value)


def _tier_hint(origin: str) -> str:
    """Return an example of what may be written there."""
    if origin.startswith("--"):
        return f"write for example {origin} /scratch/me:200GiB"
    return 'write for example tiers=["/dev/shm:8GiB", "/scratch/me:200GiB"]'


def _tier(origin: str, value: object) -> Tier:
    """Accept a `Tier`, ``PATH:SIZE[:keep][:force]``, or a TOML table."""
    if isinstance(value, Tier):
        return value
    if isinstance(value, Mapping):
        for key in value:
            choice(origin, key, tuple(field.name for field in fields(Tier)))
        details = dict(value)
    elif isinstance(value, str):
        path, *words = value.strip().split(":")
        flags = dict.fromkeys(words[1:], True)
        for word in flags:
            choice(f"{origin}: {value}", word, ("keep", "force"))
        details = {"path": path, **({"size": words[0]} if words else {}), **flags}
    else:
        raise option_error(f"{origin}: expected PATH:SIZE, found {value!r}", _tier_hint(origin))
    for name in ("path", "size"):
        if name not in details:
            raise option_error(f"{origin}: expected PATH:SIZE, found {value!r}", _tier_hint(origin))
    try:
        return Tier(**details)
    except OptionError as error:
        raise option_error(f"{origin}: {value}: {error}") from error
