"""check_basenames names both places of a shared basename."""

import unittest

import check_basenames
from tree_case import TreeCase


class CheckBasenames(TreeCase):
    def test_shared_and_unique(self):
        self.write("src/base/a.cc", "")
        self.write("src/base/a.h", "")
        self.write("cli/b.cc", "")
        self.write("bindings/x/__init__.py", "")
        self.write("plugins/y/__init__.py", "")
        self.assertEqual(check_basenames.check(self.root), [])
        self.write("testing/a.h", "")
        found = check_basenames.check(self.root)
        self.assertEqual(found, ["a.h: src/base/a.h and testing/a.h"])


if __name__ == "__main__":
    unittest.main()
