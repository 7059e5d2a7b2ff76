#!/usr/bin/env python3
"""Every LS_API function is defined in the library, and the library defines no other ls_ symbol.

Usage: c_api_symbols_test.py COMPILER NM INCLUDE LIBRARY
"""

from __future__ import annotations

import re
import subprocess
import sys

DECLARATION = re.compile(
    r'__attribute__\s*\(\(visibility\("default"\)\)\)[^;({]*?\b(ls_\w+)\s*\(', re.DOTALL
)
DEFINITION = re.compile(r"^[0-9a-f]+ [A-Z] (ls_\w+)$", re.MULTILINE)


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(compiler: str, nm: str, include: str, library: str) -> int:
    header = f"{include}/linestate/c_api.h"
    text = output_of(compiler, "-x", "c", "-E", "-P", f"-I{include}", header)
    declared = set(DECLARATION.findall(text))
    defined = set(DEFINITION.findall(output_of(nm, "-g", "--defined-only", library)))
    for name in sorted(declared - defined):
        print(f"{name}: declared, not defined")
    for name in sorted(defined - declared):
        print(f"{name}: defined, not declared")
    print(f"{len(declared)} functions declared, {len(defined)} defined")
    return 0 if declared == defined and len(declared) > 100 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
