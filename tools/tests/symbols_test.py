"""Which symbols count as public, from the text of headers."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import symbols

HEADER = """
namespace linestate {
class Pool {
 public:
  Pool(Pool&&) noexcept;
  int size() const { return helper(); }
  Status take(const Row& row);
 private:
  struct Impl;
};
Status validate(const Row& row);
extern template struct View<void>;
template <typename P>
Status register_kernel(int op, const Kernel<P>& kernel);
}
"""


class PublicTest(unittest.TestCase):
    def setUp(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "x.h").write_text(HEADER)
            self.declared = symbols.Declared(Path(folder))

    def test_declared_functions_are_public(self) -> None:
        for name in (
            "linestate::Pool::take(linestate::Row const&)",
            "linestate::Pool::Pool(linestate::Pool&&)",
            "linestate::validate(linestate::Row const&)",
        ):
            self.assertTrue(self.declared.public(name, weak=False), name)

    def test_the_rest_is_not(self) -> None:
        for name in (
            "linestate::validate(linestate::PoolSpec const&)",
            "linestate::Pool::Impl::grow()",
            "linestate::other(int)",
            "std::vector<int>::size() const",
        ):
            self.assertFalse(self.declared.public(name, weak=False), name)

    def test_weak_symbols_only_of_the_librarys_templates(self) -> None:
        self.assertFalse(self.declared.public("linestate::Pool::size() const", weak=True))
        self.assertTrue(self.declared.public("linestate::View<void>::defined() const", weak=True))
        name = "linestate::Status linestate::register_kernel<linestate::P>(int)"
        self.assertTrue(self.declared.public(name, weak=True))

    def test_the_map_is_of_this_version(self) -> None:
        text = symbols.MAP.read_text()
        self.assertEqual(text, symbols.map_text(dict.fromkeys(symbols.map_symbols(), "")))


if __name__ == "__main__":
    unittest.main()
