"""Write docs/api.md from the docstrings of the public names.

    python scripts/api_reference.py            # writes the page
    python scripts/api_reference.py --check    # exits with 1 if the page is not up to date

griffe reads the sources without importing them, so that the adapters need no framework here. In
order:

1. The names of ``forebay.__all__``, in the order of `SECTIONS`; those that no section lists come
   last.
2. The adapters: each public module beside them that is no home of such a name, with its
   ``__all__``.
3. For each name its signature, its docstring, and its public members that have one.

Roles (``:class:`Loader` ``) become links where they name something on the page, and paths such as
``docs/orders.md`` links to the page.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/api.md"

SECTIONS = {
    "Datasets and loaders": ("open", "manifest", "Dataset", "ManifestDataset", "Loader"),
    "Decoders": ("image", "array", "Decoder"),
    "Tokens": ("tokens", "TokenDataset"),
    "Mixtures": ("mix", "Mixture"),
    "Options": (
        "Group",
        "LocalShuffle",
        "Opportunistic",
        "Given",
        "Weighted",
        "Store",
        "Strategy",
        "Tier",
        "World",
    ),
    "Batches": ("Batch", "BatchTuple", "Padded", "Ragged", "Position"),
    "What a loader decided": ("Config",),
    "Errors": (
        "ForebayError",
        "OptionError",
        "MemoryLimitError",
        "FormatError",
        "StorageError",
        "StorageTimeout",
        "RendezvousError",
        "PeerLostError",
    ),
}
# Programs, which docs/commands.md describes, and options, which docs/options.md does.
OTHER_MODULES = {"cli", "options", "tools"}
# Not described one by one: a string.
WITHOUT_ENTRY = {"__version__"}
# Special methods that users do not call, or whose signature the class has.
HIDDEN = {"__init__", "__post_init__", "__new__", "__reduce__", "__repr__"}

INTRODUCTION = """\
# API reference

Look up a class or function of `forebay`. [options.md](options.md) explains the options of a loader,
[errors.md](errors.md) the exceptions, [metrics.md](metrics.md) the keys of `stats()` and `config`.

`python scripts/api_reference.py` writes this page from the docstrings.
"""

# Widest signature that stays on one line, and width of the page [characters].
LINE = 88
COLUMNS = 98  # items of lists are indented by two
ROLE = re.compile(r":(?:class|func|meth|attr|exc|mod):`~?([\w.]+)`")
LITERAL = re.compile(r"``(.+?)``", re.DOTALL)
DOCS_PAGE = re.compile(r"(?<![\w/])docs/([\w./-]+\.md)")


class Page:
    """The page under construction, and the names that have a heading on it."""

    def __init__(self, package: griffe.Object) -> None:
        if unknown := {str(name) for name in package.exports or []} - package.members.keys() - WITHOUT_ENTRY:
            names = ", ".join(sorted(unknown))
            raise ValueError(f"{package.name}.__all__: {names}: not imported under TYPE_CHECKING")
        self._adapters = {f"forebay.{name}": package[name] for name in adapter_names(package)}
        # Title → name, as a script writes it after `forebay.` → what it stands for.
        self._sections = {
            title: {name: target(package[name]) for name in names}
            for title, names in sections(package.exports or []).items()
        }
        for title, module in self._adapters.items():
            found = {f"{module.name}.{name}": target(module[str(name)]) for name in module.exports or []}
            self._sections[title] = found
        entries = [entry for names in self._sections.values() for entry in names.items()]
        self._own = {found.canonical_path for _, found in entries}
        self._names = {name for name, _ in entries}
        self._names |= {f"{name}.{method.name}" for name, found in entries for method in self._methods(found)}

    def text(self) -> str:
        """Return the page."""
        parts = [INTRODUCTION]
        for title, entries in self._sections.items():
            line = f"- {title}: {', '.join(self._link(name) for name in entries)}"
            parts.append(fill(line).replace("\n", "\n  "))
        parts.append("")
        for title, entries in self._sections.items():
            parts.append(f"## {title}\n")
            if (module := self._adapters.get(title)) is not None:
                parts += self._docstring(module, module.name)
            for name, found in entries.items():
                parts += self._entry(name, found)
        return "\n".join(parts).rstrip() + "\n"

    def _entry(self, name: str, found: griffe.Object) -> Iterator[str]:
        yield f"### `forebay.{name}`\n"
        yield from self._described(name, found)
        if attributes := [member for member in self._members(found) if member.is_attribute]:
            yield "**Attributes**\n"
            for member in attributes:
                yield self._item(f"`{member.name}` (`{member.annotation}`)", member.docstring.value, name)
            yield ""
        for member in self._methods(found):
            yield f"#### `forebay.{name}.{member.name}`\n"
            yield from self._described(f"{name}.{member.name}", member)

    def _members(self, found: griffe.Object) -> list[griffe.Object]:
        """Return the documented members of a class, and of its bases that have no entry."""
        if not found.is_class:
            return []
        inherited = (target(member) for member in found.inherited_members.values())
        own = (member for member in found.members.values() if not member.is_alias)
        from_bases = (member for member in inherited if member.parent.canonical_path not in self._own)
        return [one for one in (*own, *from_bases) if one.docstring is not None and is_shown(one.name)]

    def _methods(self, found: griffe.Object) -> list[griffe.Object]:
        """Return the members that have a heading."""
        return [member for member in self._members(found) if not member.is_attribute]

    def _described(self, name: str, found: griffe.Object) -> Iterator[str]:
        is_of_adapter = f"forebay.{name.partition('.')[0]}" in self._adapters
        code = signature(f"forebay.{name}" if is_of_adapter else name, found)
        yield f"```python\n{code}\n```\n"
        bases = [str(base) for base in found.bases if not str(base).startswith("_")] if found.is_class else []
        if bases:
            yield f"Bases: {', '.join(map(self._link, bases))}\n"
        yield from self._docstring(found, name.partition(".")[0])

    def _docstring(self, found: griffe.Object, owner: str) -> Iterator[str]:
        if found.docstring is None:
            return
        for section in found.docstring.parse("numpy", warnings=False):
            if section.kind is griffe.DocstringSectionKind.text:
                yield self._prose(section.value, owner) + "\n"
            elif section.kind is griffe.DocstringSectionKind.examples:
                yield "**Examples**\n"
                for kind, text in section.value:
                    is_text = kind is griffe.DocstringSectionKind.text
                    yield self._prose(text, owner) + "\n" if is_text else f"```python\n{text}\n```\n"
            else:
                yield f"**{section.kind.value.capitalize()}**\n"
                yield from self._items(section, found.docstring.value, owner)

    def _items(self, section: griffe.DocstringSection, docstring: str, owner: str) -> Iterator[str]:
        own_text = docstring.partition(f"{section.kind.value.capitalize()}\n-")[2]
        items = ((written_type(item, own_text), item) for item in section.value)
        # griffe makes an item of each of `rank, size : int`.
        for (kind, text), group in itertools.groupby(items, lambda one: (one[0], one[1].description)):
            names = ", ".join(f"`{name}`" for _, item in group if (name := getattr(item, "name", "")))
            if section.kind is griffe.DocstringSectionKind.raises:
                head = self._link(kind, owner)
            else:
                kind = self._marked(kind, owner)
                head = f"{names} ({kind})" if names and kind else names or kind
            yield self._item(head, text, owner)
        yield ""

    def _item(self, head: str, text: str, owner: str) -> str:
        """Return an item of a list; its first paragraph begins with ``head``."""
        return self._prose(f"- {head}: {text.strip()}", owner).replace("\n", "\n  ").replace("\n  \n", "\n\n")

    def _prose(self, text: str, owner: str) -> str:
        """Return text of a docstring as Markdown, its paragraphs filled."""
        return "\n\n".join(fill(paragraph) for paragraph in self._marked(text, owner).split("\n\n"))

    def _marked(self, text: str, owner: str) -> str:
        text = ROLE.sub(lambda match: self._link(match[1].removeprefix("forebay."), owner), text)
        text = LITERAL.sub(lambda match: f"`{match[1]}`", text)
        return DOCS_PAGE.sub(r"[\1](\1)", text)

    def _link(self, name: str, owner: str = "") -> str:
        """Return a link to an entry; a method may be named without its class."""
        for known in (name, f"{owner}.{name}"):
            if known in self._names:
                return f"[`{name}`](#{anchor(f'forebay.{known}')})"
        return f"`{name}`"


def anchor(title: str) -> str:
    """Return the anchor that Markdown renderers give to a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    """Return what a name stands for."""
    return found.final_target if isinstance(found, griffe.Alias) else found


def adapter_names(package: griffe.Object) -> list[str]:
    """Return the public modules that hold no public name of the package itself."""
    homes = {
        target(package[name]).canonical_path.split(".")[1]
        for name in package.exports or []
        if name in package.members
    }
    modules = (name for name, found in package.modules.items() if found.exports and not name.startswith("_"))
    return sorted(set(modules) - homes - OTHER_MODULES)


def is_shown(name: str) -> bool:
    """Whether a member is public, or a special method that users meet."""
    return not name.startswith("_") or (name.startswith("__") and name not in HIDDEN)


def written_type(item: griffe.DocstringElement, text: str) -> str:
    """Return the type of an item as it is written in the text of its section.

    griffe drops what follows the braces of ``{"a", "b"} or World``.
    """
    name = re.escape(getattr(item, "name", "") or "")
    written = re.search(rf"^ *(?:\w+, )*{name}(?:, \w+)* : (.*)$", text, re.MULTILINE) if name else None
    return written.group(1) if written else str(item.annotation or "")


def fill(paragraph: str) -> str:
    """Wrap a paragraph; lists and code stay as they are."""
    if re.search(r"\n([-*>|]|    |\d+\. )", paragraph) or paragraph.startswith("    "):
        return paragraph
    return textwrap.fill(paragraph, COLUMNS, break_long_words=False, break_on_hyphens=False)


def signature(name: str, found: griffe.Object) -> str:
    """Return the lines of code that declare a name."""
    if found.is_class:
        return f"class {call_of(name, found.parameters, None)}".removesuffix("()")
    return call_of(name, found.parameters, found.returns)


def shown(parameters: griffe.Parameters) -> Iterator[griffe.Parameter]:
    """Yield the parameters that a caller may pass."""
    for parameter in parameters:
        if parameter.name not in ("self", "cls") and str(parameter.annotation) != "Never":
            yield parameter


def call_of(name: str, parameters: griffe.Parameters, returns: object) -> str:
    """Return a call with its parameters, each on a line of its own where one line is too short."""
    parts, only_by_name = [], False
    for parameter in shown(parameters):
        is_by_name = parameter.kind is griffe.ParameterKind.keyword_only
        if is_by_name and not only_by_name:
            parts.append("*")
        only_by_name = only_by_name or is_by_name
        parts.append(declared(parameter))
    end = f") -> {returns}" if returns is not None else ")"
    line = f"{name}({', '.join(parts)}{end}"
    if len(line) <= LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), end])


def declared(parameter: griffe.Parameter) -> str:
    """Return a parameter with its type and default."""
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
        parameter.kind, ""
    )
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not None:
        text += f": {parameter.annotation}"
    if parameter.default is not None and not stars:
        text += f" = {parameter.default}".replace("'", '"')
    return text


def sections(exports: Iterable[str]) -> dict[str, list[str]]:
    """Return the public names by section; those that no section lists come last."""
    public = {str(name) for name in exports} - WITHOUT_ENTRY
    found = {title: [name for name in names if name in public] for title, names in SECTIONS.items()}
    if others := sorted(public - {name for names in found.values() for name in names}):
        found["Others"] = others
    return found


def reference(sources: Path = ROOT / "python") -> str:
    """Return the page as it should be for the package in a directory."""
    package = griffe.load("forebay", search_paths=[sources], docstring_parser="numpy")
    return Page(package).text()


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if it is not up to date"
    )
    if not parser.parse_args().check:
        PAGE.write_text(reference())
        return 0
    if PAGE.read_text() == reference():
        return 0
    print(f"{PAGE}: not up to date; run python scripts/api_reference.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
