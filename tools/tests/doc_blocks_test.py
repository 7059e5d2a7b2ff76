"""Blocks found in pages, and what counts as wrong."""

from __future__ import annotations

import contextlib
import io
import unittest
from pathlib import Path

import doc_blocks

PAGE = """# Page
```sh
true
```
```
a picture
```
<!-- not run: too long -->
```sh
false
```
```python
x = 1
```
text
```python
assert x == 1
```
"""


class BlocksTest(unittest.TestCase):
    def verdict(self, text: str, *languages: str) -> tuple[int, str]:
        out = io.StringIO()
        blocks = doc_blocks.blocks_of(text, "page.md")
        with contextlib.redirect_stdout(out):
            status = doc_blocks.check(blocks, list(languages), Path("."))
        return status, out.getvalue()

    def test_blocks_are_found_with_language_line_and_reason(self) -> None:
        found = doc_blocks.blocks_of(PAGE, "page.md")
        self.assertEqual(
            [(b.language, b.line, b.skipped) for b in found],
            [("sh", 3, None), ("sh", 10, "too long"), ("python", 13, None), ("python", 17, None)],
        )

    def test_reasons_are_printed_and_the_rest_runs(self) -> None:
        status, out = self.verdict(PAGE, "sh", "python")
        self.assertEqual(status, 0, out)
        self.assertIn("page.md:10: not run: too long", out)
        self.assertIn("3 blocks checked", out)
        self.assertIn("1 skipped", out)

    def test_a_failing_block_is_named(self) -> None:
        status, out = self.verdict("```sh\nfalse\n```\n", "sh")
        self.assertEqual(status, 1)
        self.assertIn("page.md:2", out)
        status, out = self.verdict(PAGE.replace("x == 1", "x == 2"), "python")
        self.assertEqual(status, 1)
        self.assertIn("line 17", out)

    def test_nothing_found_is_wrong(self) -> None:
        self.assertEqual(self.verdict("no code\n", "sh")[0], 1)

    def test_a_fragment_must_stand_in_an_example(self) -> None:
        quoted = "```c\n  LS_INIT(&batch);\n  batch.rows = row;\n```\n"
        self.assertEqual(self.verdict(quoted, "c")[0], 0)
        self.assertEqual(self.verdict(quoted.replace("row;", "rows;"), "c")[0], 1)


if __name__ == "__main__":
    unittest.main()
