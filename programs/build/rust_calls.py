"""Which errors an instruction can return: read from the sources, by following the calls of its `process`.

It knows the Rust that the programs are written in, not all of Rust. Where a name could mean several functions
(a method of an unknown type) it takes all of them, so an answer may name an error too many, never one too few;
the conformance tests hold every refusal they meet against it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rust_source import IdlError


class Function(NamedTuple):
    """A function or method. ``owner`` is the type whose impl it is in, "" outside of any."""

    crate: Path
    file: Path
    owner: str
    name: str
    is_public: bool
    is_method: bool
    body: str


CALL = re.compile(r"(?P<dot>\.\s*)?(?P<path>(?:\w+::)*)(?P<name>\w+)(?:::<[^()]*?>)?\(")
SWALLOWED = re.compile(r"\s*\.\s*(?:map_err|unwrap_or|unwrap_or_else|unwrap_or_default|ok|is_ok|is_err)\(")
"""Behind a call: its errors go no further (what `map_err` puts in their place is in the text)."""


def find_end(text: str, start: int) -> int:
    """Where the bracket at ``start`` is closed (behind it)."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "({[") - (text[at] in ")}]")
        if depth == 0:
            return at + 1
    raise IdlError(f"rust_calls.py: an open bracket at {text[start : start + 60]!r}")


def blank(text: str) -> str:
    """Spaces instead of ``text``; lines stay."""
    return re.sub(r"[^\n]", " ", text)


def strip_source(text: str) -> str:
    """The source without comments, texts, tests, macros and what is compiled for the host only."""
    text = re.sub(r"//[^\n]*", lambda match: blank(match[0]), text)
    text = re.sub(r'b?"(?:[^"\\]|\\.)*"|b?\'(?:[^\'\\]|\\.)\'', lambda match: blank(match[0]), text)
    hidden = re.compile(r"#\[cfg\((?:test|any\(\)|not\(target_os = +\))\)\]|macro_rules! \w+")
    while match := hidden.search(text):
        brace, semicolon = text.find("{", match.end()), text.find(";", match.end())
        is_block = brace >= 0 and (semicolon < 0 or brace < semicolon)
        end = find_end(text, brace) if is_block else semicolon + 1
        text = text[: match.start()] + blank(text[match.start() : end]) + text[end:]
    return text


def find_functions(crate: Path, file: Path) -> Iterator[Function]:
    """Every function of a file."""
    text = strip_source(file.read_text())
    impls = []
    for match in re.finditer(r"^\s*(?:unsafe )?impl\b([^{]*)\{", text, re.M):
        named = re.search(r"(\w+)(?:<[^>]*>)?\s*$", match[1])
        impls.append((match.end() - 1, find_end(text, match.end() - 1), named[1] if named else "?"))
    for match in re.finditer(r"(pub(?:\([^)]*\))? )?(?:const |unsafe |extern )*fn (\w+)(?:<[^(]*>)?(?=\()", text):
        arguments_end = find_end(text, match.end())
        brace, semicolon = text.find("{", arguments_end), text.find(";", arguments_end)
        if brace < 0 or 0 <= semicolon < brace and "[" not in text[arguments_end:semicolon]:
            continue  # a declaration
        owner = next((owner for start, end, owner in impls if start < match.start() < end), "")
        arguments = text[match.end() : arguments_end]
        is_method = re.match(r"\(\s*(?:&(?:'\w+ )?)?(?:mut )?self\b", arguments) is not None
        body = text[brace : find_end(text, brace)]
        yield Function(crate, file, owner, match[2], match[1] is not None, is_method, body)


class CallGraph:
    """The functions of all crates below a folder, and what they call."""

    def __init__(self, root: Path) -> None:
        manifests = [path for path in root.rglob("Cargo.toml") if "target" not in path.parts]
        self._dependencies: dict[Path, list[Path]] = {}
        self._functions: dict[Path, list[Function]] = {}
        for manifest in manifests:
            tables = tomllib.loads(manifest.read_text())
            if "package" not in tables:
                continue
            crate = manifest.parent
            used = [entry["path"] for entry in tables.get("dependencies", {}).values() if "path" in entry]
            self._dependencies[crate] = [(crate / path).resolve() for path in used]
            files = sorted((crate / "src").rglob("*.rs"))
            self._functions[crate] = [found for file in files for found in find_functions(crate, file)]
        self.find_reachable = cache(self.find_reachable)  # type: ignore[method-assign]

    def get_crates(self, crate: Path) -> list[Path]:
        """A crate and what it depends on, nearest first."""
        crates = [crate]
        for used in crates:
            crates += [other for other in self._dependencies[used] if other not in crates]
        return crates

    def find_reachable(self, function: Function) -> frozenset[Function]:
        """A function and all that it calls, directly or not, and whose errors it lets through."""
        found, todo = {function}, [function]
        while todo:
            for called in self._find_called(todo.pop()):
                if called not in found:
                    found.add(called)
                    todo.append(called)
        return frozenset(found)

    def get_function(self, crate: Path, file: Path, name: str) -> Function:
        """A function outside of any impl. Raises IdlError when there is none."""
        for function in self._functions[crate]:
            if function.file == file and function.name == name and not function.owner:
                return function
        raise IdlError(f"rust_calls.py: no fn {name} in {file}")

    def _find_called(self, caller: Function) -> Iterator[Function]:
        for match in CALL.finditer(caller.body):
            if SWALLOWED.match(caller.body, find_end(caller.body, match.end() - 1)):
                continue
            visible = [
                function
                for crate in self.get_crates(caller.crate)
                for function in self._functions[crate]
                if function.name == match["name"] and is_visible(function, caller)
            ]
            path = match["path"].removesuffix("::").split("::")
            if match["dot"]:
                yield from self._select_methods(caller, match, visible)
            elif path[-1] == "Self" or path[-1][:1].isupper():
                owner = caller.owner if path[-1] == "Self" else path[-1]
                yield from (function for function in visible if function.owner == owner)
            else:
                yield from select_free(caller, path[-1], [one for one in visible if not one.owner])

    def _select_methods(
        self, caller: Function, match: re.Match[str], visible: list[Function]
    ) -> list[Function]:
        """Methods of that name: of the caller's own type when the receiver is `self`, else of any."""
        methods = [function for function in visible if function.is_method]
        own = [function for function in methods if function.owner == caller.owner]
        is_on_self = re.search(r"(?<![\w.])self\s*$", caller.body[: match.start()]) is not None
        return own if is_on_self and own else methods


def is_visible(function: Function, caller: Function) -> bool:
    """Public functions are, private ones in their own file and the modules below it."""
    if function.is_public or function.file == caller.file:
        return True
    is_above = function.file.name in ("mod.rs", "lib.rs") and function.file.parent in caller.file.parents
    return is_above and function.crate == caller.crate


def get_parent_module(file: Path) -> Path:
    """The file of `super`."""
    folder = file.parent.parent if file.name == "mod.rs" else file.parent
    return folder / ("lib.rs" if folder.name == "src" else "mod.rs")


def select_free(caller: Function, module: str, named: list[Function]) -> list[Function]:
    """Among the functions of a name those in ``module``: the caller's own file ("") or another."""
    if module == "":
        own = [function for function in named if function.file == caller.file]
        return own or named  # imported: by name, since re-exports hide where from
    files = {"super": get_parent_module(caller.file), "crate": caller.crate / "src" / "lib.rs"}
    if module in files:
        return [function for function in named if function.file == files[module]]
    return [
        function
        for function in named
        if function.file.stem == module or function.file.parts[-2:] == (module, "mod.rs")
    ]
