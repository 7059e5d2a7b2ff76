#!/usr/bin/env python3
"""The lists of tools/gpu_check_cases.py hold together."""

from __future__ import annotations

import unittest

import gpu_check_cases as cases


class CasesTest(unittest.TestCase):
    def test_filters_leave_out_what_a_tool_does_not_follow(self) -> None:
        for tool in cases.SANITIZERS:
            for program, small in cases.SMALL_CASES.items():
                found = cases.sanitizer_filter(tool, program)
                self.assertTrue(found.startswith(small))
                left_out = found[len(small) + 1 :].split(":")
                for tools, pattern, reason in cases.NOT_FOLLOWED:
                    self.assertTrue(reason)
                    if tool in tools.split(","):
                        self.assertLessEqual(set(pattern.split(":")), set(left_out))

    def test_programs_without_small_cases_have_no_filter(self) -> None:
        self.assertEqual(cases.sanitizer_filter("memcheck", "gpu_rules"), "")

    def test_prompts_reach_into_the_block_behind_the_shared_ones(self) -> None:
        lines = cases.shared_prefixes()
        self.assertEqual(
            [line["timestamp"] for line in lines], sorted(line["timestamp"] for line in lines)
        )
        for line in lines:
            blocks = len(line["hash_ids"])
            self.assertGreater(line["input_length"], 512 * (blocks - 1))
            self.assertLessEqual(line["input_length"], 512 * blocks)


if __name__ == "__main__":
    unittest.main()
