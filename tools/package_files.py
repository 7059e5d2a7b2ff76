#!/usr/bin/env python3
"""Compares an install tree with the list of files that belong in one.

Usage: package_files.py PREFIX
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import source_tree

ROOT = source_tree.ROOT
VERSION = re.compile(r"^#define LINESTATE_VERSION_\w+ (\d+)$", re.MULTILINE)


def expected_files(configuration: str) -> set[str]:
    """Relative to the prefix; lib is the library folder, whatever its name there."""
    numbers = VERSION.findall((ROOT / "include/linestate/version.h").read_text())
    soversion = ".".join(numbers[:2]) if numbers[0] == "0" else numbers[0]
    package = "lib/cmake/linestate/linestate"
    files = {
        "bin/linestate",
        "lib/liblinestate.a",
        "lib/liblinestate.so",
        f"lib/liblinestate.so.{soversion}",
        f"lib/liblinestate.so.{'.'.join(numbers)}",
        "lib/pkgconfig/linestate.pc",
        f"{package}-config.cmake",
        f"{package}-config-version.cmake",
    }
    for kind in ("shared", "static"):
        files |= {f"{package}-{kind}.cmake", f"{package}-{kind}-{configuration}.cmake"}
    files |= {f"share/doc/linestate/{name}" for name in ("LICENSE", "README.md", "CHANGELOG.md")}
    headers = (ROOT / "include").rglob("*.h")
    return files | {str(path.relative_to(ROOT)) for path in headers}


def installed_files(prefix: Path) -> set[str]:
    paths = (path.relative_to(prefix) for path in prefix.rglob("*") if not path.is_dir())
    return {re.sub(r"^lib(64|/[\w]+-linux-gnu)/", "lib/", str(path)) for path in paths}


def main(prefix: Path) -> int:
    found = installed_files(prefix)
    configurations = {m.group(1) for f in found if (m := re.search(r"-static-(\w+)\.cmake$", f))}
    expected = expected_files(min(configurations, default="release"))
    for name in sorted(expected - found):
        print(f"package_files: missing: {name}")
    for name in sorted(found - expected):
        print(f"package_files: not expected: {name}")
    return 0 if found == expected else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
