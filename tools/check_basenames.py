#!/usr/bin/env python3
"""No two sources share a basename, so a name alone finds its file."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import source_tree

# Names that a tool gives.
EXEMPT = {"__init__.py", "conftest.py"}


def check(root: Path) -> list[str]:
    places = defaultdict(list)
    for path in source_tree.files(root):
        if path.name not in EXEMPT:
            places[path.name].append(str(path))
    return [
        f"{name}: {' and '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1
    ]


if __name__ == "__main__":
    sys.exit(source_tree.report("check_basenames", check(source_tree.ROOT)))
