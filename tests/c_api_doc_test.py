#!/usr/bin/env python3
"""The code in docs/c_api.md stands word for word in the example that is built and run.

Usage: c_api_doc_test.py PAGE EXAMPLE
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main(page: str, example: str) -> int:
    blocks = re.findall(r"^```c\n(.*?)^```$", Path(page).read_text(), re.DOTALL | re.MULTILINE)
    source = Path(example).read_text()
    missing = [block for block in blocks if block not in source]
    for block in missing:
        print(f"not in {example}:\n{block}")
    return 0 if blocks and not missing else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
