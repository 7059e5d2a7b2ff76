#!/usr/bin/env python3
"""Writes the ctypes declarations of the Python package from the C headers.

    gen_ctypes.py [--check]   bindings/python/linestate/_abi/_*.py

--check writes nothing and fails when a file is not what it would write. CC names another compiler,
which is asked for the preprocessed header.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import source_tree

HEADER = source_tree.ROOT / "include/linestate/c_api.h"
PACKAGE = source_tree.ROOT / "bindings/python/linestate/_abi"
SCALARS = {
    "bool": "c_bool",
    "char": "c_char",
    "float": "c_float",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "size_t": "c_size_t",
    "uint32_t": "c_uint32",
    "void": "None",
}
HEAD = '"""{title}\n\nWritten by tools/gen_ctypes.py from linestate/c_api.h."""\n\n'


def preprocessed() -> str:
    command = [os.environ.get("CC", "cc"), "-E", "-P", f"-I{HEADER.parents[1]}", str(HEADER)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    start = text.index("uint32_t ls_abi_version")
    text = re.sub(r"__attribute__\s*\(\(visibility\(\"default\"\)\)\)", "", text[start:])
    return re.sub(r"\s+", " ", text)


def c_type(text: str, structs: set[str], enums: set[str]) -> str:
    """The ctypes name of "const ls_rows *"; handles are void pointers."""
    text = text.replace("const", " ")
    stars = text.count("*")
    name = text.replace("*", " ").strip()
    if name == "char" and stars == 1:
        return "c_char_p"
    if name in SCALARS and name != "void":
        base = SCALARS[name]
    elif name in structs:
        base = name
    elif name in enums:
        base = "c_int"
    elif name.startswith("ls_") and name.endswith(("callback", "done")) and stars == 0:
        return name
    else:
        base, stars = "c_void_p", stars - 1  # void, or a handle
    for _ in range(stars):
        base = f"POINTER({base})"
    return base


def split_member(text: str) -> tuple[str, str, str]:
    """("const char *", "name", "[4]")."""
    match = re.fullmatch(r"(.*?)(\w+)\s*((?:\[[^\]]*\])*)", text.strip())
    assert match, text
    return match.group(1), match.group(2), match.group(3)


def fields(body: str, structs: set[str], enums: set[str]) -> list[tuple[str, str]]:
    out = []
    for member in body.split(";"):
        if not member.strip():
            continue
        function = re.search(r"\(\*\s*(\w+)\)\s*\(", member)
        if function:
            out.append((function.group(1), "c_void_p"))
            continue
        kind, name, array = split_member(member)
        ctype = c_type(kind, structs, enums)
        for size in re.findall(r"\[([^\]]*)\]", array):
            ctype = f"{ctype} * {size.strip()}"
        out.append((name, ctype))
    return out


def find_enums(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    found = []
    for match in re.finditer(r"typedef enum (\w+) \{([^}]*)\} \w+;", text):
        values = [tuple(part.split("=")) for part in match.group(2).split(",") if part.strip()]
        found.append((match.group(1), [(a.strip(), b.strip()) for a, b in values]))
    return found


def constants_source(text: str) -> str:
    lines = [HEAD.format(title="Enumerations of the C interface.")]
    for name, values in find_enums(text):
        lines.append(f"# {name}\n")
        lines += [f"{value} = {number}\n" for value, number in values]
    return "".join(lines)


# Structs up to this one go into the first file.
LAST_OF_DATA = "ls_segment"


def struct_bodies(text: str) -> list[tuple[str, str]]:
    return re.findall(r"typedef struct (\w+) \{([^}]*)\} \w+;", text)


def structs_source(text: str, calls: bool) -> str:
    enum_names = {name for name, _ in find_enums(text)}
    bodies = struct_bodies(text)
    structs = {name for name, _ in bodies}
    border = [name for name, _ in bodies].index(LAST_OF_DATA) + 1
    title = "arguments of calls" if calls else "tensors, rows, models, pools and batches"
    lines = [HEAD.format(title=f"Structs of the C interface: {title}.")]
    lines.append("from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int32\n")
    lines.append("from ctypes import c_int64, c_size_t, c_uint32, c_void_p, CFUNCTYPE\n\n")
    if calls:
        imported = ", ".join(name for name, _ in bodies[:border])
        lines.append(f"from ._data_structs import {imported}\n\n")
    else:
        lines.append("\nls_event_done = CFUNCTYPE(c_bool, c_void_p)\n")
        lines.append("ls_log_callback = CFUNCTYPE(None, c_char_p, c_void_p)\n\n")
    for name, body in bodies[border:] if calls else bodies[:border]:
        lines.append(f"class {name}(Structure):\n    _fields_ = [\n")
        for member, ctype in fields(body, structs, enum_names):
            lines.append(f'        ("{member}", {ctype}),\n')
        lines.append("    ]\n\n")
    return "".join(lines)


def all_structs_source(text: str) -> str:
    names = [name for name, _ in struct_bodies(text)]
    border = names.index(LAST_OF_DATA) + 1
    data = ["ls_event_done", "ls_log_callback", *names[:border]]
    lines = [HEAD.format(title="Every struct of the C interface, from one place.")]
    for file, some in (("_data_structs", data), ("_call_structs", names[border:])):
        aliases = ", ".join(f"{name} as {name}" for name in some)
        lines.append(f"from .{file} import {aliases}\n")
    return "".join(lines)


def functions_source(text: str) -> str:
    enum_names = {name for name, _ in find_enums(text)}
    structs = set(re.findall(r"typedef struct (\w+) \{", text))
    rows = []
    operators = dict(
        re.findall(r"ls_status ls_(\w+)_workspace_bytes\(const (ls_\w+_params)\*", text)
    )
    of_operators = {
        f"ls_{op}{end}" for op in operators for end in ("", "_workspace_bytes", "_explain")
    }
    for result, name, arguments in re.findall(r"([\w ]+[ *]+)(ls_\w+)\(([^()]*)\);", text):
        if name in of_operators:
            continue
        result = result.replace("extern", "").strip()
        types = []
        if arguments.strip() != "void":
            for argument in arguments.split(","):
                kind, _, array = split_member(argument)
                ctype = c_type(kind, structs, enum_names)
                types.append(f"POINTER({ctype})" if array else ctype)
        restype = "None" if result == "void" else c_type(result, structs, enum_names)
        listed = ", ".join(types) + ("," if len(types) == 1 else "")
        rows.append(f'    "{name}": ({restype}, ({listed})),\n')
    lines = [HEAD.format(title="Functions of the C interface: result and arguments.")]
    lines.append("from __future__ import annotations\n\nfrom typing import Any\n\n")
    lines.append("from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64\n")
    lines.append("from ctypes import Structure, c_size_t, c_uint32, c_void_p\n\n")
    words = set(re.findall(r"\w+", " ".join(row.split(":", 1)[1] for row in rows)))
    known = structs | {"ls_event_done", "ls_log_callback"}
    used = sorted(known & (words | set(operators.values())))
    lines.append(f"from ._structs import {', '.join(used)}\n\n")
    lines.append("FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {\n")
    lines += [
        *rows,
        "}\n\n# Each is three functions over one struct: run, workspace_bytes, explain.\n",
    ]
    lines.append("OPERATORS: dict[str, type[Structure]] = {\n")
    lines += [f'    "{op}": {params},\n' for op, params in operators.items()]
    return "".join([*lines, "}\n"])


def formatted(source: str) -> str:
    """As `ruff format` and its import order leave it; the tool is where `make lint` puts it."""
    local = source_tree.ROOT / ".venv/bin/ruff"
    ruff = os.environ.get("RUFF", str(local) if local.exists() else "ruff")
    options = ["-q", "--stdin-filename", str(PACKAGE / "_structs.py"), "-"]
    for command in (["check", "--fix-only", "--select", "I,F401"], ["format"]):
        source = subprocess.run(
            [ruff, *command, *options], input=source, check=True, capture_output=True, text=True
        ).stdout
    return source


def main(check: bool) -> int:
    text = preprocessed()
    stale = []
    files = {
        "_constants": constants_source,
        "_data_structs": lambda text: structs_source(text, calls=False),
        "_call_structs": lambda text: structs_source(text, calls=True),
        "_structs": all_structs_source,
        "_functions": functions_source,
    }
    for name, source_of in files.items():
        path = PACKAGE / f"{name}.py"
        source = formatted(source_of(text))
        if check:
            if not path.exists() or path.read_text() != source:
                stale.append(path.name)
        else:
            path.write_text(source)
    for name in stale:
        print(f"gen_ctypes: {name} is not current: run tools/gen_ctypes.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
