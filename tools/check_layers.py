#!/usr/bin/env python3
"""Includes only point down.

cli, bindings, plugins, testing -> capi -> backends -> batch, state -> ops -> dispatch -> cpu, cuda
-> base. Every layer may include the public headers; those include only each other and the C++
library. An operator family does not include another one, except those that serve every family:
common and draft_tree. Tests, and the headers that only they share (x_case.h, x_fixture.h), may
include anything, and nothing else includes those.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import source_tree

# Layers of src/ from the bottom. Layers of one row do not see each other.
ROWS = (
    ("base",),
    ("cpu", "cuda"),
    ("dispatch",),
    ("ops",),
    ("batch", "state"),
    ("backends",),
    ("capi",),
)
# Folders outside src/: what they include besides the public headers.
OUTER = {
    "cli": {"cli", "testing"},
    "testing": {"testing"},
    "bindings": {"bindings"},
    "plugins": {"plugins"},
    "bench": {"bench", "testing"},
    "examples": {"examples"},
    "fuzz": {"fuzz", "testing", "state", "cli"},
}
# Families of src/ops that every other one may include.
SHARED_FAMILIES = {"common", "draft_tree"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def layers_below() -> dict[str, set[str]]:
    """For each layer of src/, the layers it may include: itself and every row below."""
    allowed: dict[str, set[str]] = {}
    below: set[str] = set()
    for row in ROWS:
        for layer in row:
            allowed[layer] = below | {layer}
        below |= set(row)
    return allowed


ALLOWED = layers_below()


def public_problem(bracket: str, target: str) -> str | None:
    if bracket == "<":
        # The C++ library has neither folders nor, but for C's own headers, endings.
        if "/" in target or target.endswith((".hpp", ".cuh")) or re.match(r"(omp|cuda)", target):
            return "public headers include only each other and the C++ library"
        if target.endswith(".h") and target not in ("stdint.h", "stddef.h", "stdbool.h"):
            return "public headers include only each other and the C++ library"
        return None
    if not target.startswith("linestate/"):
        return "public headers include only each other and the C++ library"
    return None


def source_problem(path: Path, target: str) -> str | None:
    top = target.split("/")[0]
    layer = path.parts[1]
    if source_tree.is_test(Path("src", target)):
        return "only tests include what belongs to tests"
    if layer not in ALLOWED:
        return f"src/{layer} is not a layer; add it to tools/check_layers.py"
    if top not in ALLOWED[layer]:
        return f"src/{layer} may include only linestate/* and {', '.join(sorted(ALLOWED[layer]))}"
    if layer == "ops" and top == "ops":
        own, other = path.parts[2], target.split("/")[1]
        if own != other and other not in SHARED_FAMILIES:
            return f"operator family {own} may not include family {other}"
    return None


def line_problem(path: Path, bracket: str, target: str) -> str | None:
    top = path.parts[0]
    if top == "include":
        return public_problem(bracket, target)
    if bracket == "<":
        if target.startswith("linestate/"):
            return "write headers of the project in quotes"
        return None
    if "/" not in target or ".." in target:
        return "write the path from src/ or from the root of the repository"
    if target.startswith("linestate/"):
        return None
    if top == "src":
        return source_problem(path, target)
    allowed = OUTER.get(top, {top})
    if target.split("/")[0] not in allowed:
        return f"{top} may include only linestate/*, {', '.join(sorted(allowed))}"
    return None


def check(root: Path) -> list[str]:
    problems = []
    for path in source_tree.files(root, source_tree.CPP):
        if source_tree.is_test(path):
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            problem = line_problem(path, *match.groups()) if match else None
            if problem:
                problems.append(f"{path}:{number}: {match.group(2)}: {problem}")
    return problems


if __name__ == "__main__":
    sys.exit(source_tree.report("check_layers", check(source_tree.ROOT)))
