"""Which files of the repository the checks look at. Reads the tree, not git."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOP_FOLDERS = (
    "include",
    "src",
    "cli",
    "testing",
    "tests",
    "bindings",
    "plugins",
    "bench",
    "examples",
    "fuzz",
    "tools",
    "cmake",
)
CPP = (".h", ".cc", ".cu", ".cuh", ".c")
SOURCES = (*CPP, ".py", ".sh", ".cmake")
SKIPPED = {"__pycache__", "golden", "build", "node_modules"}


def files(root: Path, suffixes: tuple[str, ...] = SOURCES) -> list[Path]:
    """Paths relative to root, sorted."""
    found = []
    for top in TOP_FOLDERS:
        for folder, subfolders, names in os.walk(root / top):
            subfolders[:] = [name for name in subfolders if name not in SKIPPED]
            for name in names:
                if Path(name).suffix in suffixes:
                    found.append((Path(folder) / name).relative_to(root))
    return sorted(found)


def is_test(path: Path) -> bool:
    """Tests, and beside those of src/ what they share: x_case.h, x_fixture.h."""
    if path.parts[0] == "src" and path.stem.endswith(("_case", "_fixture")):
        return True
    return path.parts[0] == "tests" or path.stem.endswith("_test")


def report(tool: str, problems: list[str]) -> int:
    """Prints the problems; the exit status of the tool."""
    for problem in problems:
        print(f"{tool}: {problem}")
    return 1 if problems else 0
