#!/usr/bin/env python3
"""Size limits: lines of a file, columns, lines of a function, units of a folder. No exemptions."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import source_tree

MAX_COLUMNS = 100
MAX_LINES = 600
MAX_PUBLIC_HEADER_LINES = 200
MAX_FUNCTION_LINES = 60
# A header, its source and its test are one unit.
MAX_UNITS = 20

# What starts at the margin, as clang-format leaves it, and is no function.
NOT_A_FUNCTION = re.compile(r"(namespace|struct|class|union|enum|extern|using|typedef)\b|#|//|\}")


def long_functions(lines: list[str]) -> list[tuple[int, int]]:
    """(first line, length) of each function at the margin that is too long."""
    found = []
    signature: list[str] = []
    start = 0
    inside = False
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0].rstrip()
        if code.startswith("}"):
            if inside and number - start + 1 > MAX_FUNCTION_LINES:
                found.append((start, number - start + 1))
            signature, inside = [], False
        elif inside or not code or (not signature and code[0].isspace()):
            continue
        elif NOT_A_FUNCTION.match(code):
            signature = []  # also the type behind a template line
        else:
            start = start if signature else number
            signature.append(code)
            if code.endswith("{"):
                inside = "(" in "".join(signature)  # not a table of values
            if code.endswith((";", "}")) or (code.endswith("{") and not inside):
                signature = []
    return found


def unit_of(path: Path) -> str:
    return re.sub(r"(_gpu)?_test$", "", path.stem)


def file_problems(root: Path, path: Path) -> list[str]:
    lines = (root / path).read_text().splitlines()
    problems = []
    limit = MAX_LINES
    if path.parts[0] == "include":
        limit = MAX_PUBLIC_HEADER_LINES
    if len(lines) > limit:
        problems.append(f"{path}: {len(lines)} lines, at most {limit}")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            problems.append(f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS}")
    if path.suffix in source_tree.CPP and not source_tree.is_test(path):
        for number, length in long_functions(lines):
            problems.append(
                f"{path}:{number}: function of {length} lines, at most {MAX_FUNCTION_LINES}"
            )
    return problems


def check(root: Path) -> list[str]:
    problems = []
    units = defaultdict(set)
    for path in source_tree.files(root):
        problems += file_problems(root, path)
        if path.parts[0] != "tests":
            units[path.parent].add(unit_of(path))
    for folder, names in sorted(units.items()):
        if len(names) > MAX_UNITS:
            problems.append(f"{folder}: {len(names)} units, at most {MAX_UNITS}")
    return problems


if __name__ == "__main__":
    sys.exit(source_tree.report("check_sizes", check(source_tree.ROOT)))
