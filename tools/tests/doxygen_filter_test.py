"""Headers as Doxygen sees them."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import doxygen_filter


class FilterTest(unittest.TestCase):
    def shown(self, name: str, text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(text)
            return doxygen_filter.shown(path)

    def test_comments_become_doxygens(self) -> None:
        text = "// Head.\n#pragma once\n\n// Before.\nint f();\nstruct S {\n  int a;  // behind\n"
        out = self.shown("x.h", text + "          // and on\n  // Of b.\n  int b;\n};\n")
        self.assertIn("/** @file\nHead.\n*/", out)
        self.assertIn("/// Before.\nint f();", out)
        self.assertIn("int a;  ///< behind\n          ///< and on", out)
        self.assertIn("  /// Of b.\n  int b;", out)

    def test_what_nothing_explains_stays_bare(self) -> None:
        out = self.shown("x.h", "// Head.\nstruct S {\n  int bare;\n};\nint bare_too();\n")
        self.assertIn("struct S {\n  int bare;\n};\nint bare_too();", out)

    def test_rules_and_words(self) -> None:
        out = self.shown("x.h", "// Head.\nResult<int64_t> op_workspace_bytes(int a);\n")
        self.assertIn("/** Bytes of scratch", out)
        out = self.shown("x.h", "// Head.\nclass TpShard {\n  int32_t rank = 0;\n};\n")
        self.assertIn("  int32_t rank = 0;", out)
        self.assertIn("/** From 0. */", out)

    def test_macros_of_c_are_expanded(self) -> None:
        text = (
            "/* Head. */\n#define LS_DECLARE_X(op, p) \\\n  LS_API ls_status ls_##op(const p* a)\n"
            "LS_DECLARE_X(go, ls_p);\n"
            "typedef struct ls_p {\n  int a; /* said */\n  int b;\n} ls_p;\n"
        )
        out = self.shown("c_api_x.h", text)
        self.assertIn("LS_API ls_status ls_go(const ls_p* a);", out)
        self.assertIn("int a; /**< said */", out)
        self.assertIn(f"/** {doxygen_filter.C_MEMBER} */\n  int b;", out)

    def test_every_word_has_a_scope_and_a_text(self) -> None:
        for name, text in doxygen_filter.plain_words().items():
            self.assertRegex(name, r"^\w*\.[\w\->*]+$")
            self.assertTrue(text.endswith("."), name)


if __name__ == "__main__":
    unittest.main()
