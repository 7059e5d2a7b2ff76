"""Each limit of check_sizes holds at the limit and fails one past it."""

import unittest

import check_sizes
from tree_case import TreeCase


def function(lines: int, signature: str = "int f(int a) {") -> str:
    body = "  a();\n" * (lines - 2)
    return f"namespace n {{\n{signature}\n{body}}}\n}}  // namespace n\n"


class CheckSizes(TreeCase):
    def problems(self, path: str, text: str) -> list[str]:
        self.write(path, text)
        found = check_sizes.check(self.root)
        (self.root / path).unlink()
        return found

    def test_lines(self):
        for path, limit in (
            ("src/base/a.cc", 600),
            ("src/base/a_test.cc", 600),
            ("tools/a.py", 600),
            ("include/linestate/ops/a.h", 200),
        ):
            with self.subTest(path=path):
                self.assertEqual(self.problems(path, "// x\n" * limit), [])
                found = self.problems(path, "// x\n" * (limit + 1))
                self.assertEqual(found, [f"{path}: {limit + 1} lines, at most {limit}"])

    def test_columns(self):
        self.assertEqual(self.problems("cli/a.cc", "/" * 100), [])
        found = self.problems("cli/a.cc", "\n" + "/" * 101)
        self.assertEqual(found, ["cli/a.cc:2: 101 columns, at most 100"])

    def test_function(self):
        self.assertEqual(self.problems("src/base/a.cc", function(60)), [])
        for signature in ("int f(int a) {", "template <typename T>\nint f(\n    int a) {  // why"):
            with self.subTest(signature=signature):
                found = self.problems("src/base/a.cc", function(61, signature))
                self.assertEqual(len(found), 1, found)
                self.assertIn("src/base/a.cc:2: function of ", found[0])

    def test_what_is_no_function(self):
        for signature in (
            "struct S {",
            "template <typename T>\nstruct S {",
            "constexpr int kTable[] = {",
            "enum class E : int {",
        ):
            with self.subTest(signature=signature):
                self.assertEqual(self.problems("src/base/a.cc", function(90, signature)), [])
        short = "int f() { return 1; }\n" * 70 + "int g(int a);\n" * 70
        self.assertEqual(self.problems("src/base/a.cc", short), [])
        self.assertEqual(self.problems("src/base/a_test.cc", function(90)), [])

    def test_units(self):
        for i in range(20):
            for ending in (".h", ".cc", "_test.cc"):
                self.write(f"src/base/unit{i}{ending}", "// x\n")
        self.assertEqual(check_sizes.check(self.root), [])
        self.write("src/base/more.cc", "// x\n")
        self.assertEqual(check_sizes.check(self.root), ["src/base: 21 units, at most 20"])


if __name__ == "__main__":
    unittest.main()
