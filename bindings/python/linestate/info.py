"""What this library is: version, kernels, devices, presets, and which kernels ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._abi._library import lib, text_of
from ._abi._structs import ls_log_callback


@dataclass(frozen=True)
class Kernel:
    """One row of an operator's table; the first that does not refuse runs."""

    op: str
    kernel: str
    device: str
    summary: str


@dataclass(frozen=True)
class Device:
    """Something to run on. threads and memory_bytes are 0 where unknown."""

    device: str
    threads: int
    memory_bytes: int
    features: str
    name: str


@dataclass(frozen=True)
class KernelUse:
    """How often a kernel ran since start or the last reset, and how often as a fallback."""

    op: str
    kernel: str
    calls: int
    fallbacks: int
    last_reason: str


def _table(name: str) -> list[list[str]]:
    return [line.split("\t") for line in text_of(name).splitlines()]


def version() -> str:
    """Of the library, as "0.1.0"."""
    return str(lib.ls_version().decode())


def build_description() -> str:
    """Compiler, build type and devices of the library."""
    return str(lib.ls_build_description().decode())


def numerics_version() -> int:
    """Changes with a release that may give other bits than the release before."""
    return int(lib.ls_numerics_version())


def kernels() -> list[Kernel]:
    """Every kernel, in the order in which the library asks them."""
    return [Kernel(*fields) for fields in _table("list_kernels")]


def devices() -> list[Device]:
    """The CPU first."""
    return [
        Device(device, int(threads), int(memory), features, name)
        for device, threads, memory, features, name in _table("list_devices")
    ]


def presets() -> list[str]:
    """Names for `Model.preset`."""
    return [fields[0] for fields in _table("list_presets")]


def kernel_uses() -> list[KernelUse]:
    """Which kernels ran."""
    return [
        KernelUse(op, kernel, int(calls), int(fallbacks), reason)
        for op, kernel, calls, fallbacks, reason in _table("kernel_uses")
    ]


def reset_kernel_uses() -> None:
    """Counts start anew."""
    lib.ls_reset_kernel_uses()


_log: Any = None


def set_log(callback: Callable[[str], None] | None) -> None:
    """Called once for every new fallback, on any thread that runs an operator; None = silent."""
    global _log
    before = _log
    if callback is None:
        _log = ls_log_callback()
    else:
        _log = ls_log_callback(lambda message, user: callback(message.decode()))
    lib.ls_set_log_callback(_log, None)
    del before  # only now nobody calls it
