#!/usr/bin/env python3
"""The code in a page stands word for word in the example that is built and run.

Paragraph by paragraph, whatever the indentation.

Usage: quoted_code_test.py PAGE LANGUAGE EXAMPLE
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def main(page: str, language: str, example: str) -> int:
    pattern = rf"^```{language}\n(.*?)^```$"
    blocks = re.findall(pattern, Path(page).read_text(), re.DOTALL | re.MULTILINE)
    source = f"\n{stripped(Path(example).read_text())}\n"
    paragraphs = [part for block in blocks for part in stripped(block).strip().split("\n\n")]
    missing = [part for part in paragraphs if f"\n{part}\n" not in source]
    for part in missing:
        print(f"not in {example}:\n{part}\n")
    return 0 if paragraphs and not missing else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
