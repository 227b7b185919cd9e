"""Decoders of fields, for ``forebay.open(..., decode={...})``; docs/decode.md has the whole story.

A decoder is a frozen value. The engine decodes in its own threads; this module only names what it
is to do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

from forebay import _native
from forebay._core import option_error

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Decoder", "array", "decoders_of", "image"]

MODES = ("rgb", "gray")
LAYOUTS = ("hwc", "chw")
DTYPES = ("uint8", "float32", "float16")
RESIZES = ("random-crop", "center-crop", "stretch")
# Decoders without parameters.
WORDS = ("int", "text", "json")

# As the validation of ImageNet has it: the short side becomes 256 for a result of 224.
_SHORT_SIDE = (256, 224)


@dataclass(frozen=True, slots=True)
class Decoder:
    """What becomes of the bytes of a field; :func:`image` and :func:`array` make one.

    Parameters
    ----------
    facts : mapping
        The decoder as the engine reads it.
    """

    facts: Mapping[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        if (wrong := _native.check_decoder(self.facts)) is not None:
            raise option_error(f"forebay.{self.facts.get('kind', 'Decoder')}: {wrong}")


def image(
    size: int | tuple[int, int] = 224,
    *,
    mode: str = "rgb",
    resize: str = "center-crop",
    layout: str = "hwc",
    flip: bool = False,
    dtype: npt.DTypeLike | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    short_side: int | None = None,
) -> Decoder:
    """Decode a JPEG or PNG to pixels of a fixed size: shape ``(height, width, channels)``.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result [pixels]. Default 224.
    mode : {"rgb", "gray"}
        Three channels, or one. Default ``"rgb"``.
    resize : {"random-crop", "center-crop", "stretch"}
        Which part of the image becomes the result. ``random-crop``: a random rectangle, as
        torchvision's ``RandomResizedCrop``. ``center-crop``: the middle, once the short side has
        ``short_side`` pixels. ``stretch``: all of it. Default ``"center-crop"``.
    layout : {"hwc", "chw"}
        Order of the axes. ``chw``: shape ``(channels, height, width)``. Default ``"hwc"``.
    flip : bool
        Whether a random half of the samples is mirrored left to right. Default False.
    dtype : {"uint8", "float32", "float16"}
        ``uint8``: values from 0 to 255. Floats: from 0 to 1, or normalized. Default: ``"float32"``
        with ``mean`` or ``std``, else ``"uint8"``.
    mean, std : float or sequence of float
        Normalize as torchvision's ``Normalize``: ``(value / 255 - mean) / std``, in 32 bits. One
        number, or one for each channel. Default: subtract nothing, and divide by nothing more.
    scale : (float, float)
        For ``random-crop``: least and most area, relative to the image. Default (0.08, 1).
    ratio : (float, float)
        For ``random-crop``: least and most width / height. Default (3/4, 4/3).
    short_side : int
        For ``center-crop``: length of the short side before the crop [pixels]. Default: 256 / 224
        of the longer side of ``size``.

    Returns
    -------
    Decoder
        For ``forebay.open(..., decode={field: decoder})``.

    Raises
    ------
    OptionError
        If a value is none of those above.
    """
    height, width = _size(size)
    _word("mode", mode, MODES)
    _word("layout", layout, LAYOUTS)
    _word("resize", resize, RESIZES)
    fitting = {"scale": "random-crop", "ratio": "random-crop", "short_side": "center-crop"}
    for name, value in (("scale", scale), ("ratio", ratio), ("short_side", short_side)):
        if value is not None and resize != fitting[name]:
            raise option_error(f'forebay.image: {name}= is for resize="{fitting[name]}", found {resize!r}')
    if not isinstance(flip, bool):
        raise option_error(f"forebay.image: flip=: expected True or False, found {flip!r}")
    channels = {"rgb": 3, "gray": 1}[mode]
    normalize = {
        name: _channels(name, value, channels)
        for name, value in (("mean", mean), ("std", std))
        if value is not None
    }
    name = ("float32" if normalize else "uint8") if dtype is None else _dtype_name(dtype)
    _word("dtype", name, DTYPES)
    how: dict[str, Any] = {"kind": resize}
    if resize == "random-crop":
        how |= {"scale": _pair("scale", (0.08, 1.0) if scale is None else scale)}
        how |= {"ratio": _pair("ratio", (3 / 4, 4 / 3) if ratio is None else ratio)}
    elif resize == "center-crop":
        numerator, denominator = _SHORT_SIDE
        side = (max(height, width) * numerator + denominator // 2) // denominator
        how["short_side"] = side if short_side is None else _integer("short_side", short_side)
    return Decoder(
        {
            "kind": "image",
            "height": height,
            "width": width,
            "mode": mode,
            "layout": layout,
            "resize": how,
            "flip": flip,
            "dtype": name,
            **normalize,
        },
    )


def array(shape: int | Sequence[int], dtype: npt.DTypeLike = "uint8") -> Decoder:
    """Take the bytes of a field as an array of a fixed shape.

    Parameters
    ----------
    shape : int or sequence of int
        Shape of a sample. Each sample has exactly that many values; another length is an error.
    dtype : dtype-like
        A dtype of numpy in the byte order of the machine: ``"uint8"``, ``np.float32``, ... Default
        ``"uint8"``.

    Returns
    -------
    Decoder
        For ``forebay.open(..., decode={field: decoder})``.

    Raises
    ------
    OptionError
        If the shape is not one of positive integers, or there is no such dtype.
    """
    lengths = (shape,) if isinstance(shape, SupportsIndex) else tuple(shape)
    return Decoder(
        {
            "kind": "array",
            "dtype": _dtype_name(dtype),
            "shape": [_integer("shape", length) for length in lengths],
        },
    )


def _dtype_name(dtype: npt.DTypeLike) -> str:
    """Return the name of a dtype that numpy knows; any other text as it is, for the error."""
    import numpy as np  # here, as the command line imports this module without it

    try:
        found = np.dtype(dtype)
    except TypeError:
        return str(dtype)
    return found.name if found.isnative else found.str


def decoders_of(decode: object) -> dict[str, Mapping[str, Any]]:
    """Return the decoders of ``forebay.open(decode=)`` as the engine reads them.

    Raises
    ------
    OptionError
        If they are no mapping of field name to decoder.
    """
    if decode is None:
        return {}
    if not isinstance(decode, Mapping):
        raise option_error(
            f"forebay.open: decode=: expected a mapping of field name to decoder, found {decode!r}",
            'as in decode={"jpg": forebay.image(size=224), "cls": "int"}',
        )
    found: dict[str, Mapping[str, Any]] = {}
    for name, decoder in decode.items():
        if not isinstance(name, str):
            raise option_error(f"forebay.open: decode=: expected the name of a field, found {name!r}")
        if isinstance(decoder, Decoder):
            found[name] = decoder.facts
        elif decoder in WORDS:
            found[name] = {"kind": decoder}
        else:
            words = ", ".join(f'"{word}"' for word in WORDS)
            raise option_error(
                f"forebay.open: decode= of field {name!r}: expected forebay.image(...), forebay.array(...), {words}; "
                f"found {decoder!r}",
                "a function of your own is transform= of forebay.Loader",
            )
    return found


def _word(name: str, value: object, words: Sequence[str]) -> None:
    if value not in words:
        raise option_error(f"forebay.image: {name}=: expected one of {', '.join(words)}; found {value!r}")


def _integer(name: str, value: object) -> int:
    """Return an integer that the engine can hold."""
    found = None if isinstance(value, bool) or not isinstance(value, SupportsIndex) else operator.index(value)
    if found is None or not 0 <= found < 2**32:
        raise option_error(f"{name}=: expected integers from 1 to 2**32 - 1, found {value!r}")
    return found


def _size(size: object) -> tuple[int, int]:
    if isinstance(size, tuple | list):
        if len(size) != 2:
            raise option_error(f"forebay.image: size=: expected (height, width), found {size!r}")
        return _integer("size", size[0]), _integer("size", size[1])
    side = _integer("size", size)
    return side, side


def _channels(name: str, value: object, channels: int) -> list[float]:
    """Return a number for each of three channels; gray has the first."""
    numbers: list[Any] = [value] * channels if isinstance(value, int | float) else list(value)  # type: ignore[call-overload]
    try:
        found = [float(number) for number in numbers]
    except (TypeError, ValueError):
        found = []
    if len(found) != channels or not all(map(math.isfinite, found)):
        raise option_error(
            f"forebay.image: {name}=: expected a number, or one for each of {channels} channels; found {value!r}"
        )
    return found if channels == 3 else found * 3


def _pair(name: str, value: object) -> list[float]:
    try:
        least, most = (float(number) for number in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise option_error(
            f"forebay.image: {name}=: expected two numbers, least and most; found {value!r}"
        ) from None
    if not 0 < least <= most < float("inf"):
        raise option_error(f"forebay.image: {name}=: expected 0 < least <= most, found ({least}, {most})")
    return [least, most]
