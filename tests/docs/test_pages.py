"""Pages tell the truth: commands, options, links, words, metrics."""

from __future__ import annotations

import ast
import dataclasses
import json
import re

import click
import pytest

import forebay
import forebay.cli
from forebay import _explain
from forebay.cli.commands import cli, packages
from support import ROOT, documented_keys, snapshot

PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples/README.md",
]


COMMANDS = [name for commands in packages().values() for name in commands]


def command_page():
    """Sections of docs/commands.md by command."""
    text = (ROOT / "docs/commands.md").read_text()
    parts = re.split(r"^## forebay (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_is_documented_and_no_other():
    assert list(command_page()) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_documented_and_no_other(name):
    command = cli.get_command(None, name)
    usage = command_page()[name].split("`")[1]
    options = {option for one in command.params if isinstance(one, click.Option) for option in one.opts}
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", usage)) == options
    assert "--json" in options
    assert all(one.help for one in command.params if isinstance(one, click.Option))


def test_every_public_name_has_a_docstring():
    for name in forebay.__all__:
        value = getattr(forebay, name)
        assert isinstance(value, str) or (value.__doc__ and value.__doc__.strip()), name
    assert set(dir(forebay)) == set(forebay.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'"):
        forebay.nothing  # noqa: B018


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def code(page):
    """Return the Python code on a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "api.md"], ids=lambda page: page.stem
)
def test_code_on_a_page_is_code(page):
    for text in code(page):
        ast.parse(text)


@pytest.mark.parametrize("name", ["README.md", "docs/per-sample.md", "docs/selections.md"])
def test_the_first_code_on_a_page_runs_as_it_is(name, capsys):
    exec(compile(code(ROOT / name)[0], name, "exec"), {})
    assert name != "README.md" or "order: groups of" in capsys.readouterr().out


def test_the_index_has_each_page():
    index = (ROOT / "docs/README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#]+)", index))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages | {"formats/README.md", "results/README.md", "../examples/README.md"} <= linked


def examples_of_commands():
    """Yield page and words of each command line of ours on a page."""
    for page in sorted(PAGES):
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^    (?:\S+ )*?(forebay [a-z].*)$", text, flags=re.MULTILINE):
            for part in re.split(r"\||&&| > |;|#| -- ", line):
                words = part.split()
                if words[:1] == ["forebay"] and words[1] in COMMANDS:
                    yield page.name, " ".join(words[1:])


@pytest.mark.parametrize(("page", "words"), list(examples_of_commands()), ids=str)
def test_examples_of_commands_have_options_that_exist(page, words):
    words = words.split()
    command = cli.get_command(None, words[0])
    if isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        command = command.commands[words[1]]
    options = {option for one in command.params for option in one.opts}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= options | {"--help", "-h"}, page


def anchors(page):
    """Return the anchors of the headings of a page, as Markdown renderers make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_sections_name_one(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
        if "://" not in target:
            other = page.parent / target if target else page
            assert anchor in anchors(other), f"{target}#{anchor}"


# Variables of tests and of developers.
NOT_OF_USERS = {
    "FOREBAY_FAILPOINT",
    "FOREBAY_LONG_TESTS",
    "FOREBAY_WRITE_GOLDEN",
    "FOREBAY_WRITE_SNAPSHOTS",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_variables_on_a_page_are_those_of_the_options_page(page):
    known = set(re.findall(r"`(FOREBAY_\w+)` \|", (ROOT / "docs/options.md").read_text())) | NOT_OF_USERS
    assert set(re.findall(r"\bFOREBAY_[A-Z_]*[A-Z]\b", page.read_text())) <= known


def test_words_are_defined_once_and_in_order():
    rows = re.findall(r"^\| ([^|]+) \| ", (ROOT / "docs/glossary.md").read_text(), flags=re.MULTILINE)[1:]
    words = [row.split(",")[0].strip() for row in rows]
    assert words == sorted(words)
    assert len(set(words)) == len(words)


# Keys of `loader.stats()` that the sum over a node does not have.
OF_RANK = {"node", "read_bytes_by_epoch", "level_bytes_by_epoch", "work_wait_seconds"}


def test_every_key_of_a_loader_is_documented(small_lmdb):
    with forebay.Loader(small_lmdb, 8, node_memory="16MiB") as loader:
        for _ in loader:
            pass
        stats, config = loader.stats(), loader.config
    assert documented_keys("`loader.stats()`") == list(stats)
    assert documented_keys("`loader.config`") == [one.name for one in dataclasses.fields(config)]
    for part in ("data", "order", "index", "reading", "memory", "now"):
        names = [one.name for one in dataclasses.fields(getattr(config, part))]
        assert documented_keys(f"`{part}`") == names, part
    quality = config.order.shuffle_quality
    assert documented_keys("`shuffle_quality`") == [one.name for one in dataclasses.fields(quality)]
    assert stats["node"].keys() == stats.keys() - OF_RANK


def test_every_fallback_is_documented_and_has_its_words():
    source = (ROOT / "crates/forebay-engine/src/base/fallback.rs").read_text()
    variants = re.findall(r"^    ([A-Z]\w+),$", source.partition("pub enum Wanted")[2], flags=re.MULTILINE)
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", variant).lower() for variant in variants]
    assert documented_keys("`fallbacks`") == names
    assert list(_explain._INSTEAD) == names


@pytest.mark.parametrize("command", ["index", "inspect", "verify", "convert", "limit"])
def test_every_key_of_a_command_is_documented(capsys, tmp_path, small_lmdb, command):
    more = {"limit": ["--seconds", "0.01"], "convert": [str(tmp_path / "a.npy")]}.get(command, [])
    assert forebay.cli.main([command, str(small_lmdb), *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(documented_keys(f"`forebay {command} --json`")) == set(found)
    if command == "limit":
        assert set(documented_keys("A figure")) == set(found["figures"][0])


def test_no_snapshot_is_left_over():
    sources = {path.stem: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (snapshot.DIRECTORY / "messages").iterdir():
        for key in snapshot.blocks(path):
            name = re.match(r"\w+", key)[0]
            assert f"def {name}(" in sources[path.stem], f"{path}: {key}"
    texts = "".join(sources.values())
    for path in snapshot.DIRECTORY.rglob("*.txt"):
        words = path.stem.rpartition("-")[2] if path.parent.name == "recipe" else path.stem
        assert path.parent.name == "messages" or f"{words}" in texts, path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_100_columns(page):
    """Tables, code, what the benches write, and words that cannot be broken may be longer."""
    text = re.sub(
        r"^```.*?^```$|<!-- (?:table|picture): .*?<!-- end -->",
        "",
        page.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    long = [
        line
        for line in text.splitlines()
        if len(line) > 100
        and not line.startswith(("|", "    "))
        and " " in re.sub(r"`[^`]*`", "", line)[:100].strip()
    ]
    assert not long
