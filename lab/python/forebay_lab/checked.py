"""Values of JSON and TOML in a given form, checked by msgspec."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec
import msgspec.inspect

__all__ = ["convert"]

_Form = TypeVar("_Form", bound=msgspec.Struct)


def convert(values: object, form: type[_Form], refuse: Callable[[str, str, object], NoReturn]) -> _Form:
    """Return values in a form.

    Parameters
    ----------
    values
        What a parser returned.
    form
        The type that they should have.
    refuse
        Raises the error for (key with its tables, what was expected, what was found); None was
        found where there is nothing.
    """
    try:
        return msgspec.convert(values, form)
    except msgspec.ValidationError as error:
        problem = str(error)
    _refuse(problem, values, form, refuse)
    raise AssertionError(problem)


def _refuse(
    problem: str, values: object, form: type[msgspec.Struct], refuse: Callable[[str, str, object], NoReturn]
) -> NoReturn:
    what, _, place = problem.partition(" - at `$")
    place = place.removesuffix("`").lstrip(".")
    if match := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what):
        key = f"{place}.{match[2]}".lstrip(".")
        if match[1].startswith("missing"):
            refuse(key, _in_words(type(_type_at(form, key)).__name__.removesuffix("Type").lower()), None)
        refuse(key, "no key of this name", _find(values, key))
    expected = _in_words(what.removeprefix("Expected ").partition(", got ")[0].replace("`", ""))
    if what.startswith("Invalid enum value"):
        expected = f"one of {', '.join(map(str, _type_at(form, place).values))}"
    refuse(place, expected, _find(values, place))


def _type_at(form: type[msgspec.Struct], place: str) -> Any:
    found: Any = msgspec.inspect.type_info(form)
    for part in _parts(place):
        if isinstance(found, msgspec.inspect.UnionType):
            found = next(one for one in found.types if not isinstance(one, msgspec.inspect.NoneType))
        fields = {field.name: field.type for field in getattr(found, "fields", ())}
        found = fields[part] if fields else found.item_type
    return found


_NAMES = {
    "array": "a list",
    "dict": "an object",
    "float": "a number",
    "int": "an integer",
    "list": "a list",
    "object": "an object",
    "str": "a string",
    "struct": "an object",
}


def _in_words(expected: str) -> str:
    """Return msgspec's description of a type in the words of other messages."""
    kind, _, rest = expected.removesuffix(" | null").partition(" ")
    rest = re.sub(r"^>= ", "of at least ", rest)
    rest = re.sub(r"^> ", "above ", rest)
    return f"{_NAMES.get(kind, kind)} {rest}".strip().removesuffix(".0")


def _parts(place: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", place)


def _find(values: Any, place: str) -> object:
    for part in _parts(place):
        if isinstance(values, list):
            values = values[int(part)]
        elif isinstance(values, dict):
            values = values.get(part)
    return values
