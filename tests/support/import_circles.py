"""Find files of a Rust crate, or of a Python package, that import each other in a circle.

A file imports another one if it names one of its items, in a `use` line or in a path such as
`crate::index::Index`. Re-exports are followed to the file that defines the item. Test modules do
not count. A `mod.rs` or `lib.rs` may dispatch to the files below it and be imported by them; all
other imports must run in one direction. An `__init__.py` dispatches in the same way. Imports inside
functions and those for type checkers count like all others.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

Module = tuple[str, ...]


class Import(NamedTuple):
    """A path that a `use` line binds to a name."""

    path: tuple[str, ...]
    name: str


def without_comments_and_tests(text: str) -> str:
    """Remove comments, strings and test modules, which may import what they like."""
    text = re.sub(
        r"""'(?:\\[^']+|[^'\\])'|b?r#"(?:.|\n)*?"#|b?"(?:\\(?:.|\n)|[^"\\])*"|//[^\n]*""", '""', text
    )
    return re.sub(
        r"\n#\[cfg\((?:all\()?test\b[^\n]*\n(?:#\[[^\n]*\n)*(?:pub(?:\([^)]*\))? )?mod \w+ \{\n(?:.|\n)*?\n\}",
        "",
        text,
    )


def leaves(tree: str) -> list[Import]:
    """Return the paths of a `use` tree: `a::{b, c::d as e}` is a::b and a::c::d."""
    head, brace, rest = tree.partition("{")
    prefix = tuple(filter(None, head.strip().split("::")))
    if not brace:
        path, _, alias = tree.strip().partition(" as ")
        segments = tuple(part.strip() for part in path.split("::"))
        return [Import(segments, alias.strip() or segments[-1])]
    found, depth, start = [], 0, 0
    rest = rest.rstrip().removesuffix("}") + ","
    for at, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if rest[start:at].strip():
                for path, name in leaves(rest[start:at]):
                    path = path[:-1] if path[-1] == "self" else path
                    found.append(Import(prefix + path, prefix[-1] if name == "self" else name))
            start = at + 1
    return found


class Crate:
    """The modules of a crate, what they import, and which file defines what they name."""

    def __init__(self, source: Path) -> None:
        self.modules: dict[Module, Path] = {}
        for path in source.rglob("*.rs"):
            parts = path.relative_to(source).with_suffix("").parts
            self.modules[parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts] = path
        self.texts = {
            module: without_comments_and_tests(path.read_text()) for module, path in self.modules.items()
        }
        self.uses: dict[Module, list[Import]] = {}
        self.bodies: dict[Module, str] = {}
        for module, text in self.texts.items():
            lines = re.findall(r"\buse ([^;]+);", text)
            self.uses[module] = [found for line in lines for found in leaves(line)]
            self.bodies[module] = re.sub(r"\buse [^;]+;", "", text)
        self.defining = cache(self._defining)

    def absolute(self, module: Module, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return a path from the root of the crate; None for other crates."""
        if path[0] == "crate":
            return path[1:]
        if path[0] == "self":
            return module + path[1:]
        if path[0] == "super":
            while path and path[0] == "super":
                module, path = module[:-1], path[1:]
            return module + path
        return module + path if (*module, path[0]) in self.modules else None

    def _defining(self, path: tuple[str, ...]) -> Module | None:
        """Return the module whose file defines the item at this path, behind all re-exports."""
        length = max((n for n in range(len(path) + 1) if path[:n] in self.modules), default=0)
        module, item = path[:length], path[length:]
        if not item:
            return module
        for found in self.uses[module]:
            target = self.absolute(module, found.path)
            if found.name == item[0] and target is not None and target != path[: len(target)]:
                return self.defining(target + item[1:])
        return module

    def imports(self, module: Module) -> set[Module]:
        """Return the modules whose items a module names."""
        paths = re.findall(r"(?<![\w:$])(?:crate|super|self)(?:::\w+)+", self.bodies[module])
        named = [self.absolute(module, tuple(path.split("::"))) for path in paths]
        for found in self.uses[module]:
            target = self.absolute(module, found.path)
            if target in self.modules:
                # A module is imported for the items that are named with it.
                pattern = rf"(?<![\w:]){found.name}((?:::\w+)+)"
                items = re.findall(pattern, self.bodies[module])
                named += [(*target, *item.split("::")[1:]) for item in items]
            else:
                named.append(target)
        defining = {self.defining(path) for path in named if path is not None}
        return {other for other in defining if other is not None} - {module}

    def circles(self) -> list[list[str]]:
        """Return the groups of files that import each other, but for dispatching modules."""
        edges = {module: self.imports(module) for module in self.modules}
        for module, path in self.modules.items():
            if path.stem in ("mod", "lib"):
                edges[module] = {other for other in edges[module] if other[: len(module)] != module}
        return [["::".join(module) or "lib" for module in group] for group in circles(edges)]

    def folders(self) -> list[Module]:
        """Return the folders of modules that have folders or files below them."""
        return sorted({module[:n] for module in self.modules for n in range(len(module))})

    def arrows_within(self, folder: Module) -> dict[Module, set[Module]]:
        """Return which parts of a folder (files, and folders as a whole) import which others."""
        depth = len(folder) + 1
        inside = [module for module in self.modules if module[:-1][: depth - 1] == folder and module]
        edges: dict[Module, set[Module]] = {module[:depth]: set() for module in inside}
        for module in inside:
            used = {other[:depth] for other in self.imports(module) if len(other) >= depth}
            edges[module[:depth]] |= (used & edges.keys()) - {module[:depth]}
        return edges

    def circles_of_folders(self) -> list[list[str]]:
        """Return the groups of parts of one folder that import each other."""
        groups = [group for folder in self.folders() for group in circles(self.arrows_within(folder))]
        return [["::".join(module) for module in group] for group in groups]


class Package:
    """The modules of a Python package, and what they import of it."""

    def __init__(self, source: Path) -> None:
        self.name = source.name
        self.modules: dict[Module, Path] = {}
        for path in source.rglob("*.py"):
            parts = path.relative_to(source.parent).with_suffix("").parts
            self.modules[parts[:-1] if parts[-1] == "__init__" else parts] = path

    def imports(self, module: Module) -> set[Module]:
        """Return the modules that a module imports, or imports names from."""
        named: set[Module] = set()
        for node in ast.walk(ast.parse(self.modules[module].read_text())):
            if isinstance(node, ast.Import):
                named |= {tuple(alias.name.split(".")) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None, f"{self.modules[module]}: a relative import"
                path = tuple(node.module.split("."))
                submodules = {(*path, alias.name) for alias in node.names}
                named |= {other if other in self.modules else path for other in submodules}
        return {other for other in named if other in self.modules} - {module}

    def circles(self) -> list[list[str]]:
        """Return the groups of modules that import each other, but for dispatching packages."""
        edges = {module: self.imports(module) for module in self.modules}
        for module, path in self.modules.items():
            if path.stem == "__init__":
                edges[module] = {other for other in edges[module] if other[: len(module)] != module}
        return [[".".join(module) for module in group] for group in circles(edges)]


def circles(edges: dict[Module, set[Module]]) -> list[list[Module]]:
    """Return the groups of modules that reach each other."""
    reach = {module: reachable(edges, module) for module in edges}
    groups = {tuple(sorted(other for other in reach[module] if module in reach[other])) for module in edges}
    return sorted(list(group) for group in groups if group)


def reachable(edges: dict[Module, set[Module]], start: Module) -> set[Module]:
    """Return the modules that can be reached by at least one edge."""
    found: set[Module] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found
