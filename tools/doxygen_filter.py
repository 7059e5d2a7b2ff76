#!/usr/bin/env python3
"""Shows a public header to Doxygen: its comments are the project's, not Doxygen's.

    doxygen_filter.py HEADER   the same number of declarations, with comments that Doxygen reads

The comment at the head is that of the file, one before a declaration is its own, one behind a
member is the member's. What needs no comment, because a rule stated once explains it, gets the rule
as its comment: the members of C structs and the C functions are those of C++, and an operator's
workspace and explain functions are the same for all. What its name explains in the header has a
line in docs/api/plain_words.txt. Everything else without a comment is reported.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Of an operator or backend, by the end or the start of the function's name.
RULES = (
    (r"\b\w+_workspace_bytes\(", "Bytes of scratch that the call of this name needs."),
    (r"\bexplain_\w+\(", "Which kernel the call of this name would run, and why not the others."),
    (r"\b\w+_explain\(", "Which kernels the call of this name would run, as text."),
    (r"\b\w+_create\(", "Makes a handle; null after an error."),
    (r"\b\w+_destroy\(", "Ends the handle; null does nothing."),
    (r"\bLS_API\b", "As the C++ function of this name, which says what it does and its errors."),
    (r"^struct \w+Params \{", "Arguments of the operator of this name."),
    (r"operator==|operator=\(|&&\)|^\s*~\w+\(", "As usual for a value."),
)
WORDS = Path(__file__).resolve().parent.parent / "docs/api/plain_words.txt"
C_MEMBER = "As the member of this name in C++."


def head_comment(lines: list[str]) -> int:
    """Lines of the comment that the file starts with."""
    if lines and lines[0].startswith("/*"):
        return next(i for i, line in enumerate(lines) if "*/" in line) + 1
    return next((i for i, line in enumerate(lines) if not line.startswith("//")), 0)


def mark_cpp(lines: list[str]) -> list[str]:
    """`// x` as `/// x`, behind code as `///< x`; lines that continue the latter too."""
    out: list[str] = []
    behind = -1  # column of the comment behind the code above
    for line in lines:
        match = re.match(r"^(.*?)(?<![:/])//(/?)( .*)$", line)
        if not match:
            behind = -1
            out.append(line)
            continue
        code, text = match.group(1), re.sub(r"\s*NOLINT.*", "", match.group(3))
        if code.strip():
            behind = len(code)
            out.append(f"{code}///<{text}" if text.strip() else code)
        elif len(code) == behind and not match.group(2):
            out.append(f"{code}///<{text}")
        else:
            behind = -1
            out.append(f"{code}///{text}")
    return out


def mark_c(lines: list[str]) -> list[str]:
    """`/* x */` as `/** x */`, behind code as `/**< x */`."""
    out = []
    inside = False
    for line in lines:
        if inside or "/*" in line:
            line = re.sub(r"<(\w+)>", r"(\1)", line)
        inside = (inside or "/*" in line) and "*/" not in line
        if "/*" in line:
            code, text = line.split("/*", 1)
            line = f"{code}/**{'<' if code.strip() else ''}{text}"
        out.append(line)
    return out


def macros(text: str) -> dict[str, tuple[list[str], str]]:
    """Function-like macros that declare functions."""
    found = {}
    for match in re.finditer(r"^#define (LS_DECLARE\w+)\(([^)]*)\)((?:.*\\\n)+.*\n)", text, re.M):
        body = match.group(3).replace("\\\n", "\n")
        found[match.group(1)] = ([one.strip() for one in match.group(2).split(",")], body)
    return found


def expand(text: str, known: dict[str, tuple[list[str], str]]) -> str:
    """Uses of those macros as the functions they declare."""

    def one(match: re.Match[str]) -> str:
        names, body = known[match.group(1)]
        for name, value in zip(names, match.group(2).split(","), strict=True):
            body = body.replace(f"##{name}##", value.strip())
            body = re.sub(rf"##{name}\b|\b{name}##|\b{name}\b", value.strip(), body)
        return body.strip() + ";\n"

    for name in known:
        text = re.sub(rf"^#define {name}\((?:.*\\\n)+.*\n", "", text, flags=re.M)
        text = re.sub(rf"^({name})\(([^)]*)\);\n", one, text, flags=re.M)
    return text


def documented(lines: list[str], index: int) -> bool:
    """A comment before the line or behind it."""
    before = lines[index - 1].strip() if index else ""
    if before.startswith("template"):
        before = lines[index - 2].strip()
    return (
        "///<" in lines[index]
        or "/**<" in lines[index]
        or before.startswith("///")
        or (before.endswith("*/") and "/**<" not in before)
    )


def apply_rules(lines: list[str], is_c: bool) -> list[str]:
    """A comment for each declaration that a rule explains."""
    out: list[str] = []
    depth = ""
    for index, line in enumerate(lines):
        if re.match(r"typedef (struct|enum) \w+ \{$", line):
            depth = line.split()[1]
        elif line.startswith("}"):
            depth = ""
        starts = re.match(r"^ {0,4}[\w~:<>*&\[\] ]+", line) and not line.strip().startswith("//")
        if starts and not documented(lines, index):
            if is_c and depth and re.match(r"^  [\w].*[;,]?", line):
                line = f"  /** {C_MEMBER} */\n{line}"
            elif is_c and line.startswith("typedef"):
                line = f"/** As the C++ type of this name, member by member. */\n{line}"
            elif not re.match(r"^\s*(return|using|if|for|class)\b", line):
                indent = re.match(r" *", line).group()  # type: ignore[union-attr]
                for pattern, text in RULES:
                    if re.search(pattern, line) and re.match(r"^\s*[\w~\[]", line):
                        line = f"{indent}/** {text} */\n{line}"
                        break
        out.append(line)
    return out


def plain_words() -> dict[str, str]:
    """Text of SCOPE.NAME."""
    lines = [line for line in WORDS.read_text().splitlines() if not line.startswith("#")]
    return {name: text for name, text in (line.split(": ", 1) for line in lines)}


def declared_name(line: str) -> str:
    """What a line declares; empty for most lines."""
    for pattern in (
        r"^\s*#define (\w+)",
        r"^\s*(?:struct|class|enum class|enum)\s+(?:\[\[\w+\]\] |alignas\(\d+\) )?(\w+)[^;]*\{",
        r"^\s*using (\w+) =",
        r"(operator(?:->|\*))\(",
        r"^\s*(?:[\w:<>&*,~ \[\]]+[ *&])?(\w+)\(",
        r"^\s*[\w:<>&*, ]+[ *&](\w+)(?:\[[^\]]*\])*(?:\{.*\}| = .*)?[;{]",
        r"^\s*[\w:<>&*, ]+[ *&](\w+) =$",
    ):
        match = re.search(pattern, line)
        if match:
            return match.group(1)
    return ""


def apply_words(lines: list[str]) -> list[str]:
    """The words for each declaration of a C++ header that has no comment."""
    words = plain_words()
    out: list[str] = []
    scope = ""
    for index, line in enumerate(lines):
        name = declared_name(re.sub(r"///<.*", "", line))
        inside = scope if line.startswith(" ") else ""
        text = words.get(f"{inside}.{name}", "")
        if name and text and not documented(lines, index):
            template = out and out[-1].lstrip().startswith("template")
            out.insert(len(out) - 1 if template else len(out), f"/** {text} */")
        if re.match(r"^(struct|class|enum)\b.*\{", line):
            scope = declared_name(line)
        elif line.startswith("}"):
            scope = ""
        out.append(line)
    return out


def shown(path: Path) -> str:
    text = path.read_text()
    is_c = path.name.startswith("c_api")
    lines = text.splitlines()
    count = head_comment(lines)
    head = [re.sub(r"^(//|/\*| \*)? ?|\s*\*/$", "", line) for line in lines[:count]]
    head = [re.sub(r"\s*\*/$", "", line) for line in head]
    body = "\n".join(lines[count:]) + "\n"
    if is_c:
        known = macros(path.read_text())
        if "LS_DECLARE_OP" in text:
            known |= macros((path.parent / "c_api_ops.h").read_text())
        rest = mark_c(expand(body, known).splitlines())
    else:
        rest = mark_cpp(body.splitlines())
    ruled = "\n".join(apply_rules(rest, is_c)).splitlines()
    start = ["/** @file", *("" if not line else f"{line}" for line in head), "*/"]
    return "\n".join([*start, *apply_words(ruled), ""])


if __name__ == "__main__":
    print(shown(Path(sys.argv[1])), end="")
