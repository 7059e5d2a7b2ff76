#!/usr/bin/env python3
"""Writes docs/support_matrix.md from the kernel tables, as `linestate info --json` tells them.

    support_matrix.py COMMAND [--check]   COMMAND is the linestate program of a build for the CPU

--check writes nothing and fails when the page is not what it would write.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import source_tree

PAGE = source_tree.ROOT / "docs/support_matrix.md"
HEAD = """# What runs where

Written by `tools/support_matrix.py build/linestate` from the tables of a build for the CPU; a test
fails when it is not current. The first kernel of an operator that does not refuse a problem runs;
`linestate explain` says which one that is and why, `linestate info` prints these tables for the
build and the machine at hand.

Every operator takes f32, bf16 and f16 inputs, and state pools of f32, bf16 and f16. Head sizes are
multiples of 16 up to 256.

## Kernels
"""


def mib(size: int) -> str:
    return f"{size / 2**20:.2f}"


def page(info: dict[str, Any]) -> str:
    lines = [HEAD, "| operator | kernel | device | what it is |", "|---|---|---|---|"]
    last = ""
    for row in info["kernels"]:
        op = "" if row["op"] == last else f"`{row['op']}`"
        last = row["op"]
        summary = row["summary"].replace("|", "\\|")
        lines.append(f"| {op} | `{row['kernel']}` | {row['device']} | {summary} |")
    lines += ["", "## Models", "", "MiB a request over all linear layers, windows in bf16.", ""]
    lines += ["| preset | linear layers | state f32 | bf16 | f16 |", "|---|---|---|---|---|"]
    for model in info["models"]:
        sizes = [mib(model[f"bytes_per_slot_{dtype}"]) for dtype in ("f32", "bf16", "f16")]
        lines.append(f"| `{model['name']}` | {model['layers']} | {' | '.join(sizes)} |")
    return "\n".join([*lines, ""])


def main(command: str, check: bool) -> int:
    run = subprocess.run([command, "info", "--json"], check=True, capture_output=True, text=True)
    text = page(json.loads(run.stdout))
    if not check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"support_matrix: {PAGE.name} is not current: run tools/support_matrix.py {command}")
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(str(Path(sys.argv[1]).resolve()), "--check" in sys.argv[2:]))
