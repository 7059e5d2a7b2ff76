"""Kernels of your own, in Python: slow as a kernel, but a door for devices and experiments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from typing import Any

from ._abi import _constants as c
from ._abi._functions import OPERATORS
from ._abi._library import call
from ._abi._params import fill
from ._abi._structs import ls_context, ls_kernel, ls_tensor
from .device import TYPES
from .errors import LinestateError, NotFoundError
from .tensors import Tensor

_REFUSE = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, POINTER(c_char), c_size_t)
_BYTES = CFUNCTYPE(c_int64, c_void_p, c_void_p, c_void_p)
_RUN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, POINTER(c_char), c_size_t)


class KernelCall:
    """The call that a kernel is asked about: the operator's C struct, its defaults filled in, after
    the operator's own checks. All of it is the library's, and valid until the function returns.

    params: the struct, `ls_kda_params` for "kda_decode"; docs/c_api.md says where its members are
    explained. context: `ls_context`.
    """

    def __init__(self, params: Structure, context: ls_context) -> None:
        self.params = params
        self.context = context

    def member(self, path: str) -> Any:
        """A member by its path, "kda.rows.start"; pointers to structs are followed, null is None.

        Tensors come as `Tensor`, None where not given; inputs are read-only by agreement only.
        """
        value: Any = self.params
        for name in path.split("."):
            value = getattr(value, name)
            if isinstance(value, ctypes._Pointer):
                value = value.contents if value else None
            if value is None:
                return None
        if isinstance(value, ls_tensor):
            return Tensor(value, self) if value.rank else None
        return value


class RegisteredKernel:
    """A kernel in front of the built-in ones of its operator until `unregister`; also a `with`
    block. It must not be unregistered while calls of the operator run.
    """

    def __init__(self, op: str, name: str, struct: ls_kernel) -> None:
        self.op = op
        self.name = name
        self._struct: ls_kernel | None = struct

    def unregister(self) -> None:
        """A second call does nothing."""
        if self._struct is not None:
            call("unregister_kernel", self.op.encode(), self.name.encode())
            self._struct = None
            _registered.remove(self)

    def __enter__(self) -> RegisteredKernel:
        return self

    def __exit__(self, *error: object) -> None:
        self.unregister()


# Registered kernels, so that their callbacks live though nobody holds the object.
_registered: list[RegisteredKernel] = []


def _put_text(text: str, buffer: Any, size: int) -> None:
    if size:
        data = text.encode()[: size - 1] + b"\0"
        ctypes.memmove(buffer, data, len(data))


def register_kernel(
    op: str,
    name: str,
    run: Callable[[KernelCall], None],
    *,
    refuse: Callable[[KernelCall], str | None] | None = None,
    workspace_bytes: Callable[[KernelCall], int] | None = None,
    summary: str = "",
    device: str = "cpu",
) -> RegisteredKernel:
    """Puts `run` in front of the built-in kernels of `op`, latest first.

    refuse: why it cannot serve a problem, None = it can; not given = it serves all.
    workspace_bytes: scratch it wants in call.context.workspace. device: where it runs: "cpu",
    "cuda" or "external", which only such kernels know. What `run` raises becomes the operator's
    error, a LinestateError with its own status. Functions run on whatever thread calls the
    operator. Errors: NotFoundError (no such operator), InvalidArgumentError (a name that is taken).
    """
    if op not in OPERATORS:
        raise NotFoundError(f"op: expected one of {', '.join(sorted(OPERATORS))}, got {op}")
    kind = OPERATORS[op]

    def problem(params: int, context: int) -> KernelCall:
        return KernelCall(kind.from_address(params), ls_context.from_address(context))

    def on_refuse(params: int, context: int, user: Any, reason: Any, size: int) -> int:
        try:
            words = None if refuse is None else refuse(problem(params, context))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        if words is None:
            return 0
        _put_text(words, reason, size)
        return 1

    def on_bytes(params: int, context: int, user: Any) -> int:
        try:
            return 0 if workspace_bytes is None else int(workspace_bytes(problem(params, context)))
        except Exception:  # there is no way to say it here; `run` gets too little, and says so
            return 0

    def on_run(params: int, context: int, user: Any, text: Any, size: int) -> int:
        try:
            run(problem(params, context))
        except Exception as error:
            known = isinstance(error, LinestateError)
            _put_text(str(error) if known else f"{type(error).__name__}: {error}", text, size)
            return int(error.status) if known else c.LS_INTERNAL  # type: ignore[attr-defined]
        return c.LS_OK

    functions = (_REFUSE(on_refuse), _BYTES(on_bytes), _RUN(on_run))
    addresses = [ctypes.cast(one, c_void_p) for one in functions]
    struct = fill(
        ls_kernel,
        name=name.encode(),
        summary=summary.encode() if summary else None,
        device_type=TYPES[device],
        refuse=addresses[0],
        workspace_bytes=addresses[1],
        run=addresses[2],
    )
    struct.functions = functions  # no field: they live as long as the struct
    call("register_kernel", op.encode(), byref(struct))
    kernel = RegisteredKernel(op, name, struct)
    _registered.append(kernel)
    return kernel
