"""docs/troubleshooting.md quotes messages that exist, and has each warning."""

from __future__ import annotations

import ast
import re

import pytest

from support import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
RUST = [path for path in sorted(ROOT.glob("crates/*/src/**/*.rs")) if path.stem != "tests"]
PYTHON = sorted((ROOT / "python/forebay").rglob("*.py"))
# What these print is explained where their commands are.
OF_COMMANDS = {"tools", "cli"}


def rows(heading: str) -> list[str]:
    """Return the quoted messages in the first column below a heading."""
    section = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (`.*?`) \| ", section, flags=re.MULTILINE)
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


WARNINGS, EVENTS, ERRORS = rows("Warnings"), rows("Warnings in the log"), rows("Errors")


def unwrapped(text: str, is_rust: bool) -> str:
    """Return source text with the literals of a message in one piece."""
    if is_rust:
        text = re.sub(r"\\\n\s*", "", text)
    else:
        text = re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)
    return text.replace('\\"', '"')


SOURCES = "\n".join(
    [unwrapped(path.read_text(), True) for path in RUST]
    + [unwrapped(path.read_text(), False) for path in PYTHON]
)


def fragments(message: str) -> list[str]:
    """Return the parts of a message that are the same in each case."""
    parts = (part.strip(" :,;.") for part in message.split("…"))
    return [part for part in parts if len(part) > 1]


def is_quoted(text: str, messages: list[str]) -> bool:
    """Whether a message of the page has only parts of this text, in their order."""
    pattern = [".*".join(map(re.escape, fragments(message))) for message in messages if fragments(message)]
    return any(re.search(one, text, flags=re.DOTALL) for one in pattern)


@pytest.mark.parametrize("message", [*WARNINGS, *EVENTS, *ERRORS])
def test_a_quoted_message_exists(message):
    found = fragments(message)
    assert found
    for part in found:
        assert part in SOURCES, part
    assert max(map(len, found)) >= 5


def python_warnings() -> list[tuple[str, str]]:
    """Return file and text of each warning of the package."""
    found = []
    texts = {path: path.read_text() for path in PYTHON}
    for path, whole in texts.items():
        # To parse all of them takes a second at each start of the tests.
        for node in ast.walk(ast.parse(whole)) if "warn(" in whole else ():
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "warn"
                and not isinstance(node.args[0], ast.Name)
            ):
                text = node.args[0]
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                found.append((
                    str(path.relative_to(ROOT)),
                    "".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts),
                ))  # fmt: skip
    return found


@pytest.mark.parametrize(("path", "text"), python_warnings())
def test_each_warning_of_python_is_on_the_page(path, text):
    if not {*path.split("/")} & OF_COMMANDS:
        assert is_quoted(text, WARNINGS), text


def rust_warnings() -> list[tuple[str, str]]:
    """Return file and text of each warning that the engine and the tiers issue."""
    # With an argument before the text, as the tiers have, or none.
    call = r"(?:\.warn|warnings\.push)\((?:level, )?&?(?:format!|format_args!)?\(?\s*\"(.*?)\"[,)\n]"
    found = []
    for path in RUST:
        text = unwrapped(path.read_text().partition("#[cfg(test)]\nmod tests")[0], True)
        for message in re.findall(call, text):
            shown = re.sub(r"\{[^{}]*\}", "…", message).removeprefix('loader "…": ')
            # The others pass on a text that is made elsewhere.
            found += [(str(path.relative_to(ROOT)), shown)] if fragments(shown) else []
    return found


@pytest.mark.parametrize(("path", "text"), rust_warnings())
def test_each_warning_of_the_engine_is_on_the_page(path, text):
    assert is_quoted(text, WARNINGS), text


def test_warnings_of_the_engine_are_found():
    files = {path for path, _ in rust_warnings()}
    assert {
        f"crates/forebay-{name}.rs" for name in ("engine/src/loader/start", "tier/src/level/health")
    } <= files
    assert len(rust_warnings()) > 10


def test_each_event_of_the_level_warning_is_on_the_page():
    texts = re.findall(
        r"tracing::warn!\([^;]*?\"([^\"]+)\"\s*\)", "\n".join(path.read_text() for path in RUST)
    )
    assert set(texts) == set(EVENTS)
