"""tools/new_op stamps a folder that obeys the checks, compiles, and has a test that fails."""

import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import check_basenames
import check_layers
import check_sizes
from tree_case import TreeCase

REPOSITORY = Path(check_layers.__file__).resolve().parent.parent
NEW_OP = REPOSITORY / "tools/new_op"


class NewOp(TreeCase):
    def setUp(self):
        super().setUp()
        for folder in ("include", "src"):
            shutil.copytree(REPOSITORY / folder, self.root / folder)

    def stamp(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, NEW_OP, *arguments, "--root", self.root]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_stamps_a_phase(self):
        before = [c.check(self.root) for c in (check_layers, check_sizes, check_basenames)]
        result = self.stamp("stamped", "step")
        self.assertEqual(result.returncode, 0, result.stderr)
        folder = self.root / "src/ops/stamped/step"
        self.assertEqual(
            sorted(path.name for path in folder.iterdir()),
            [
                "stamped_step.cc",
                "stamped_step_cpu.cc",
                "stamped_step_kernels.h",
                "stamped_step_ref.cc",
                "stamped_step_test.cc",
            ],
        )
        header = (folder / "stamped_step_kernels.h").read_text()
        # The name from which CMake writes the list of all tables.
        self.assertIn("stamped_step_table();", header)
        contract = (self.root / "include/linestate/ops/stamped.h").read_text()
        self.assertIn("struct StampedStepParams {", contract)
        self.assertIn("FAIL()", (folder / "stamped_step_test.cc").read_text())
        for path in [*folder.iterdir(), self.root / "include/linestate/ops/stamped.h"]:
            self.assertNotIn("@", path.read_text())
        after = [c.check(self.root) for c in (check_layers, check_sizes, check_basenames)]
        self.assertEqual(after, before)

    def test_compiles(self):
        self.assertEqual(self.stamp("stamped", "step").returncode, 0)
        self.assertEqual(self.stamp("stamped", "scan", "--op", "stamped_prefix_scan").returncode, 0)
        compiler = os.environ.get("CXX", "c++")
        for source in sorted((self.root / "src/ops/stamped").rglob("*.cc")):
            with self.subTest(source=source.name):
                command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
                command += [f"-I{self.root}/include", f"-I{self.root}/src", str(source)]
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_refuses(self):
        self.assertEqual(self.stamp("stamped", "step").returncode, 0)
        again = self.stamp("stamped", "step")
        self.assertEqual(again.returncode, 1)
        self.assertIn("exists", again.stderr)
        self.assertEqual(self.stamp("Stamped", "step").returncode, 2)


if __name__ == "__main__":
    unittest.main()
