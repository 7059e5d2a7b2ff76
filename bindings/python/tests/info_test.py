"""Lists, counts, the log, errors, the device status, and the declarations against the header."""

from __future__ import annotations

import ctypes
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import linestate as ls
import numpy as np
import pytest
from linestate import errors
from linestate._abi import _structs

ROOT = Path(__file__).resolve().parents[3]


def test_versions_agree() -> None:
    assert ls.__version__ == ls.version() == importlib.metadata.version("linestate")
    assert ls.numerics_version() >= 1 and "cpu" in ls.build_description()


def test_lists() -> None:
    ops = {kernel.op for kernel in ls.kernels()}
    assert {"kda_decode", "lightning_prefill", "replay_fold"} <= ops
    assert all({"cpu", "ref"} <= {k.kernel for k in ls.kernels() if k.op == op} for op in ops)
    assert ls.devices()[0].device == "cpu" and ls.devices()[0].threads > 0
    assert "tiny" in ls.presets()


def test_uses_are_counted() -> None:
    ls.reset_kernel_uses()
    x = np.ones((2, 1, 16), np.float32)
    ls.gated_rms_norm(x, x, x[0, 0], kernel="ref")
    uses = [(use.op, use.kernel, use.calls) for use in ls.kernel_uses()]
    assert ("gated_rms_norm", "ref", 1) in uses


def test_device_status() -> None:
    status = ls.DeviceStatus()
    context = ls.Context(status=status, check_finite=True)
    x = np.full((2, 1, 16), np.nan, np.float32)
    ls.gated_rms_norm(x, x, x[0, 0], context=context)
    assert status.flags() == {"non_finite"} and status.describe()
    status.reset()
    assert status.flags() == set() and status.row("non_finite") == -1


def test_every_status_has_an_exception() -> None:
    for status in range(1, 11):
        one = errors.error_of(status, "text")
        assert one.status == status and str(one) == "text"
    assert isinstance(errors.error_of(1, ""), ValueError)
    assert isinstance(errors.error_of(4, ""), LookupError)
    assert isinstance(errors.error_of(5, ""), MemoryError)


def test_the_log_can_be_set_and_unset() -> None:
    lines: list[str] = []
    ls.set_log(lines.append)
    ls.set_log(None)
    assert lines == []


def test_structs_lie_as_the_compiler_lays_them(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    assert compiler, "the test needs a C compiler"
    found = {
        name: cls
        for name, cls in vars(_structs).items()
        if name.startswith("ls_") and isinstance(cls, type) and issubclass(cls, ctypes.Structure)
    }
    lines = ['#include <stdio.h>\n#include "linestate/c_api.h"\nint main(void) {\n']
    expected = []
    for name, cls in found.items():
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));\n')
        expected.append(f"{name} {ctypes.sizeof(cls)}")
        for field, *_ in cls._fields_:
            lines.append(f'  printf("{name}.{field} %zu\\n", offsetof({name}, {field}));\n')
            expected.append(f"{name}.{field} {getattr(cls, field).offset}")
    source = tmp_path / "layout.c"
    source.write_text("".join([*lines, "  return 0;\n}\n"]))
    program = tmp_path / "layout"
    subprocess.run([compiler, f"-I{ROOT}/include", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected and len(expected) > 300


def test_a_missing_library_is_an_import_error() -> None:
    environment = {"LINESTATE_LIBRARY": "/nonexistent.so", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", "import linestate"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode != 0 and "ImportError: linestate: cannot load" in run.stderr


def test_closed_handles_are_refused() -> None:
    model = ls.Model.preset("tiny")
    model.close()
    model.close()
    with pytest.raises(ValueError, match="Model: closed"):
        model.layers  # noqa: B018
