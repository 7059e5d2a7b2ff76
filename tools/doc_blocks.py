#!/usr/bin/env python3
"""Runs the code blocks of README.md, CONTRIBUTING.md and docs/.

    doc_blocks.py c cpp sh --build FOLDER   with the programs and the library of a build
    doc_blocks.py python                    with the interpreter's own linestate

c and cpp: a whole program (it has a main) is compiled, linked and run; the paragraphs of anything
else stand word for word in one file of examples/, which the tests build and run. python: the blocks
of a page are one program. sh: every block runs by itself in the root, where build/linestate is the
build's command. A block after `<!-- not run: REASON -->` is left out, and the reason is printed.
Other languages, and a block without one, are pictures and texts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import source_tree

ROOT = source_tree.ROOT
BLOCK = re.compile(r"(?:<!-- not run: ([^>]*?) -->\n)?^```([a-z]+)\n(.*?)^```$", re.M | re.S)
LANGUAGES = ("c", "cpp", "python", "sh")
SECONDS = 120


@dataclass
class Block:
    page: str
    line: int
    language: str
    code: str
    skipped: str | None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(text: str, page: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(3)) + 1
        found.append(Block(page, line, match.group(2), match.group(3), match.group(1)))
    return found


def run(command: list[str], **options: object) -> str:
    """Empty, or what went wrong."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command, capture_output=True, text=True, timeout=SECONDS, **options
        )
    except subprocess.TimeoutExpired:
        return f"ran for more than {SECONDS} s"
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}exit {done.returncode}"


def stripped(code: str) -> str:
    return "\n".join(line.strip() for line in code.splitlines())


def check_program(block: Block, build: Path, folder: Path) -> str:
    if not re.search(r"\bmain\(", block.code):
        wanted = stripped(block.code).strip().split("\n\n")
        for example in (ROOT / "examples").rglob("*.c*"):
            text = f"\n{stripped(example.read_text())}\n"
            if all(f"\n{paragraph}\n" in text for paragraph in wanted):
                return ""
        return "no main, and not word for word in a file of examples/"
    source = folder / f"block.{'cc' if block.language == 'cpp' else 'c'}"
    source.write_text(block.code)
    if block.language == "cpp":
        compiler = [os.environ.get("CXX", "c++"), "-std=c++20"]
    else:
        compiler = [os.environ.get("CC", "cc"), "-std=c99"]
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", str(source)]
    link = [f"-L{build}", "-llinestate", f"-Wl,-rpath,{build}", "-o", str(folder / "block")]
    return run([*compiler, *flags, *link]) or run([str(folder / "block")], cwd=folder)


def check_shell(block: Block, build: Path) -> str:
    code = re.sub(r"\bbuild/linestate\b", str(build / "linestate"), block.code)
    return run(["bash", "-euo", "pipefail", "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL)


def check_python(blocks: list[Block], folder: Path) -> str:
    # Lines keep their numbers, so that an error names the page's line.
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    program = folder / Path(blocks[0].page).with_suffix(".py").name
    program.write_text("\n".join(lines) + "\n")
    return run([sys.executable, str(program)], cwd=folder)


def check(blocks: list[Block], languages: list[str], build: Path) -> int:
    wrong = ran = 0
    skipped = [block for block in blocks if block.skipped and block.language in languages]
    for block in skipped:
        print(f"doc_blocks: {block.name}: not run: {block.skipped}")
    todo = [block for block in blocks if not block.skipped and block.language in languages]
    for block in todo:
        with tempfile.TemporaryDirectory() as name:
            if block.language == "python":
                group = [one for one in todo if (one.page, one.language) == (block.page, "python")]
                if block is not group[0]:
                    continue
                problem = check_python(group, Path(name))
                ran += len(group)
            else:
                is_shell = block.language == "sh"
                problem = (
                    check_shell(block, build)
                    if is_shell
                    else check_program(block, build, Path(name))
                )
                ran += 1
        if problem:
            wrong += 1
            print(f"doc_blocks: {block.name}: {problem}")
    print(
        f"doc_blocks: {ran} blocks checked ({', '.join(languages)}), {wrong} wrong,"
        f" {len(skipped)} skipped"
    )
    return 1 if wrong or not ran else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("languages", nargs="+", choices=LANGUAGES)
    parser.add_argument("--build", type=lambda name: Path(name).resolve(), default=ROOT / "build")
    options = parser.parse_args()
    blocks = []
    for path in pages():
        blocks += blocks_of(path.read_text(), str(path.relative_to(ROOT)))
    return check(blocks, options.languages, options.build)


if __name__ == "__main__":
    sys.exit(main())
