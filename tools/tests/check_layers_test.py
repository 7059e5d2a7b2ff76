"""Each rule of check_layers fails on a line that breaks it, and passes on one that does not."""

import unittest
from pathlib import Path

import check_layers
from tree_case import TreeCase


class CheckLayers(TreeCase):
    def problems(self, path: str, line: str) -> list[str]:
        self.write(path, line + "\n")
        found = check_layers.check(self.root)
        (self.root / path).unlink()
        return found

    def test_refused(self):
        for path, line in (
            ("src/base/a.cc", '#include "ops/kda/x.h"'),
            ("src/base/a.cc", '#include "cpu/x.h"'),
            ("src/cpu/a.cc", '#include "cuda/x.h"'),
            ("src/ops/kda/decode/a.cc", '#include "backends/x.h"'),
            ("src/ops/kda/decode/a.cc", '#include "ops/lightning/x.h"'),
            ("src/ops/common/a.cc", '#include "ops/lightning/x.h"'),
            ("src/batch/a.cc", '#include "state/x.h"'),
            ("src/state/a.cc", '#  include "backends/x.h"'),
            ("src/backends/a.cc", '#include "cli/x.h"'),
            ("src/capi/a.cc", '#include "testing/x.h"'),
            ("src/ops/kda/a.cc", '#include "ops/kda/kda_case.h"'),
            ("src/backends/a.cc", '#include "backends/x_fixture.h"'),
            ("testing/a_case.h", '#include "base/x.h"'),
            ("src/base/a.cc", '#include "x.h"'),
            ("src/base/a.cc", '#include "../cpu/x.h"'),
            ("src/base/a.cc", "#include <linestate/x.h>"),
            ("src/novel/a.cc", '#include "base/x.h"'),
            ("cli/a.cc", '#include "base/x.h"'),
            ("testing/a.cc", '#include "base/x.h"'),
            ("testing/a.h", '#include "cli/x.h"'),
            ("bindings/a.cc", '#include "testing/x.h"'),
            ("include/linestate/a.h", '#include "base/x.h"'),
            ("include/linestate/a.h", "#include <omp.h>"),
            ("include/linestate/a.h", "#include <cuda_runtime.h>"),
            ("include/linestate/a.h", "#include <hwy/highway.h>"),
        ):
            with self.subTest(path=path, line=line):
                found = self.problems(path, line)
                self.assertEqual(len(found), 1, found)
                self.assertIn(f"{path}:1", found[0])

    def test_allowed(self):
        for path, line in (
            ("src/base/a.cc", '#include "base/x.h"'),
            ("src/base/a.cc", "#include <omp.h>"),
            ("src/dispatch/a.cc", '#include "cuda/x.h"'),
            ("src/ops/kda/decode/a.cc", '#include "ops/kda/x.h"'),
            ("src/ops/kda/decode/a.cc", '#include "base/x.h"'),
            ("src/ops/kda/decode/a.cc", '#include "ops/common/x.h"'),
            ("src/ops/kda/decode/a.cc", '#include "ops/draft_tree/x.h"'),
            ("src/backends/a.cc", '#include "state/x.h"'),
            ("src/base/a_test.cc", '#include "testing/x.h"'),
            ("src/ops/kda/decode/a_test.cc", '#include "ops/lightning/x.h"'),
            ("src/ops/kda/kda_case.h", '#include "testing/x.h"'),
            ("src/backends/x_fixture.h", '#include "testing/x.h"'),
            ("tests/a.cc", '#include "base/x.h"'),
            ("cli/a.cc", '#include "testing/x.h"'),
            ("testing/a.cc", '#include "linestate/x.h"'),
            ("include/linestate/a.h", '#include "linestate/x.h"'),
            ("include/linestate/a.h", "#include <vector>"),
            ("src/base/a.cc", '// #include "ops/kda/x.h"'),
        ):
            with self.subTest(path=path, line=line):
                self.assertEqual(self.problems(path, line), [])

    def test_layers_are_ordered(self):
        self.assertEqual(check_layers.ALLOWED["base"], {"base"})
        self.assertNotIn("ops", check_layers.ALLOWED["dispatch"])
        self.assertIn("base", check_layers.ALLOWED["capi"])

    def test_every_folder_of_src_is_a_layer(self):
        here = Path(check_layers.__file__).resolve().parent.parent / "src"
        folders = {path.name for path in here.iterdir() if path.is_dir()}
        self.assertLessEqual(folders, set(check_layers.ALLOWED))


if __name__ == "__main__":
    unittest.main()
