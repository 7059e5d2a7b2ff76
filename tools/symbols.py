#!/usr/bin/env python3
"""What the shared library exports: cmake/linestate.map, the public functions and no other symbol.

    symbols.py LIBRARY.a [--fix]  the map holds what public headers declare and the library defines
    symbols.py LIBRARY.so         the library exports the map, exactly

NM in the environment names another nm.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import source_tree

MAP = source_tree.ROOT / "cmake/linestate.map"
INCLUDE = source_tree.ROOT / "include/linestate"
VERSION = re.compile(r"^#define LINESTATE_VERSION_(?:MAJOR|MINOR) (\d+)$", re.MULTILINE)


class Declared:
    """Names that the C++ headers declare, found by their text."""

    def __init__(self, include: Path) -> None:
        text = "\n".join(path.read_text() for path in sorted(include.rglob("*.h")))
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        # A class with a body; `struct Impl;` stays private.
        body = r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*|alignas\(\d+\)\s*)*(\w+)[^;{(]*\{"
        self.classes = set(re.findall(body, text))
        self.functions: dict[str, list[str]] = {}
        for match in re.finditer(r"([A-Za-z_]\w*)\s*\(([^;]*);", text):
            self.add(match.group(1), match.group(2))
        # Templates that the library instantiates: their code is weak, and not the caller's.
        self.templates = set(re.findall(r"\bextern template \w+ (\w+)<", text))
        bodiless = r"\btemplate <[^>]*>\s*\w[\w<>&:]*\s+(\w+)\([^;{]*\);"
        self.templates |= set(re.findall(bodiless, text))

    def add(self, name: str, parameters: str) -> None:
        self.functions.setdefault(name, []).append(parameters)
        for match in re.finditer(r"([A-Za-z_]\w*)\s*\(", parameters):  # a body's last statement
            self.functions.setdefault(match.group(1), []).append(parameters[match.end() :])

    def has_overload(self, name: str, parameters: str) -> bool:
        """Some declaration of the name mentions every type of ours in the parameters."""
        types = set(re.findall(r"linestate::(?:\w+::)*(\w+)", parameters)) - {"BasicTensorView"}
        return any(
            all(re.search(rf"\b{name_of_type}\b", text) for name_of_type in types)
            for text in self.functions.get(name, [])
        )

    def public(self, demangled: str, weak: bool) -> bool:
        # A template's name starts with its result type.
        match = re.match(r"(?:linestate::[\w:]+ )?linestate::(.*)", demangled)
        if not match:
            return False
        name = re.sub(r"\[abi:\w+\]", "", match.group(1))
        path = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", name))
        *scopes, last = path.split("(")[0].split("::")
        if weak:
            return (scopes[0] if scopes else last) in self.templates
        if not all(scope in self.classes for scope in scopes):
            return False
        if scopes and (last.lstrip("~") in scopes or last.startswith("operator")):
            return True
        parameters = name.split("(", 1)[1] if "(" in name else ""
        return self.has_overload(last, parameters)


def nm(library: Path, *options: str) -> list[tuple[str, str]]:
    """(type, name) of every global symbol."""
    command = [os.environ.get("NM", "nm"), "-g", "--defined-only", *options, str(library)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.findall(r"^[0-9a-f]+ (\w) (.+)$", out, re.MULTILINE)


def demangle(names: list[str]) -> list[str]:
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    return out.stdout.splitlines()


def public_symbols(library: Path) -> dict[str, str]:
    """Mangled and readable names of what the static library defines for the public headers."""
    declared = Declared(INCLUDE)
    symbols = dict((name, kind) for kind, name in nm(library))
    return {
        name: readable
        for name, readable in zip(symbols, demangle(list(symbols)), strict=True)
        if name.startswith("ls_") or declared.public(readable, symbols[name] in "WVu")
    }


def map_text(symbols: dict[str, str]) -> str:
    version = ".".join(VERSION.findall((INCLUDE / "version.h").read_text()))
    lines = [f"    {name};" for name in sorted(symbols)]
    head = "# Written by `tools/symbols.py LIBRARY.a --fix`: the exported symbols."
    return "\n".join(
        [head, f"LINESTATE_{version} {{", "  global:", *lines, "  local: *;", "};", ""]
    )


def map_symbols() -> set[str]:
    return set(re.findall(r"^    (\S+);$", MAP.read_text(), re.MULTILINE))


def differences(expected: set[str], got: set[str], expected_name: str, got_name: str) -> int:
    for name in sorted(expected ^ got):
        place = expected_name if name in expected else got_name
        print(f"symbols: only in {place}: {demangle([name])[0]}")
    print(f"symbols: {len(expected)} in {expected_name}, {len(got)} in {got_name}")
    return 0 if expected == got and len(got) > 300 else 1


def main(library: Path, fix: bool) -> int:
    if library.suffix == ".a":
        symbols = public_symbols(library)
        if fix:
            MAP.write_text(map_text(symbols))
        return differences(set(symbols), map_symbols(), "the public headers", MAP.name)
    exported = {name.split("@")[0] for kind, name in nm(library, "-D") if kind != "A"}
    return differences(map_symbols(), exported, MAP.name, library.name)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), "--fix" in sys.argv[2:]))
