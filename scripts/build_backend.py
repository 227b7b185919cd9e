"""Build backend of pip (PEP 517 and 660): maturin, and the preload library of `forebay run`.

maturin builds one library per package, the extension. This backend first builds the preload library
with cargo and puts it beside the Python files. A wheel includes it from there, and an editable
installation finds it there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import *  # noqa: F403 - the hooks that stay as they are

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = ROOT / "python/forebay/libforebay_preload.so"
COMMAND = ("cargo", "build", "--locked", "--package", "forebay-preload", "--lib", "--profile", "preload")


def check_rust() -> None:
    """End with a message where there is no Rust: pip prints it before all else."""
    if shutil.which("cargo") is None:
        raise SystemExit(
            "forebay: no wheel fits this platform, and building from source needs Rust: `cargo` is not on PATH\n"
            "hint: install Rust from https://rustup.rs, or use a platform and a Python that wheels are built for"
        )


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what building a wheel needs; asked for first."""
    check_rust()
    return list(maturin.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Return what building an editable wheel needs; asked for first."""
    check_rust()
    return list(maturin.get_requires_for_build_editable(config_settings))


def build_preload_library() -> None:
    """Build the preload library and put it into the package."""
    check_rust()
    command = [*COMMAND, "--message-format", "json-render-diagnostics"]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    messages = map(json.loads, output.splitlines())
    artifacts = (one for one in messages if one["reason"] == "compiler-artifact")
    built = next(one["filenames"][0] for one in artifacts if one["target"]["name"] == "forebay_preload")
    # A running program may have the old file mapped.
    draft = PACKAGED.with_suffix(".new")
    shutil.copy(built, draft)
    draft.rename(PACKAGED)


def build_wheel(*arguments: Any, **named: Any) -> str:
    """Build a wheel."""
    build_preload_library()
    name: str = maturin.build_wheel(*arguments, **named)
    return name


def build_editable(*arguments: Any, **named: Any) -> str:
    """Build a wheel that refers to this source tree."""
    build_preload_library()
    name: str = maturin.build_editable(*arguments, **named)
    return name
