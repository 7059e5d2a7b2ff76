"""Exceptions. Each carries the text of the library: argument, what was expected, what came."""

from __future__ import annotations

from ._abi import _constants as c


class LinestateError(Exception):
    """Base of every error that the library reports.

    `status` is the value of the C interface's ls_status, `status_name` its name.
    """

    status: int = c.LS_INTERNAL
    status_name: str = "internal"


class InvalidArgumentError(LinestateError, ValueError):
    """The caller passed something that a contract forbids."""

    status, status_name = c.LS_INVALID_ARGUMENT, "invalid_argument"


class UnsupportedError(LinestateError, NotImplementedError):
    """Legal, but no kernel here can do it; the text lists every refusal."""

    status, status_name = c.LS_UNSUPPORTED, "unsupported"


class FailedPreconditionError(LinestateError, RuntimeError):
    """The object is in the wrong state for this call."""

    status, status_name = c.LS_FAILED_PRECONDITION, "failed_precondition"


class NotFoundError(LinestateError, LookupError):
    """A name, file or slot that does not exist."""

    status, status_name = c.LS_NOT_FOUND, "not_found"


class ResourceExhaustedError(LinestateError, MemoryError):
    """Memory, slots or disk ran out."""

    status, status_name = c.LS_RESOURCE_EXHAUSTED, "resource_exhausted"


class DataLossError(LinestateError, ValueError):
    """A buffer or file is damaged, truncated or of another format."""

    status, status_name = c.LS_DATA_LOSS, "data_loss"


class IoError(LinestateError, OSError):
    """The operating system refused a read or write."""

    status, status_name = c.LS_IO, "io"


class CancelledError(LinestateError):
    """The caller asked to stop."""

    status, status_name = c.LS_CANCELLED, "cancelled"


class DeviceError(LinestateError, RuntimeError):
    """A device call failed; the text has the call."""

    status, status_name = c.LS_DEVICE, "device"


class InternalError(LinestateError, RuntimeError):
    """A bug in linestate."""


_BY_STATUS: dict[int, type[LinestateError]] = {
    one.status: one
    for one in (
        InvalidArgumentError,
        UnsupportedError,
        FailedPreconditionError,
        NotFoundError,
        ResourceExhaustedError,
        DataLossError,
        IoError,
        CancelledError,
        DeviceError,
        InternalError,
    )
}


def error_of(status: int, text: str) -> LinestateError:
    """The exception for a status that is not LS_OK."""
    return _BY_STATUS.get(status, InternalError)(text)
