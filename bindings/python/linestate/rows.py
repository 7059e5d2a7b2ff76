"""The rows of a call, as operators read them: which slot each has, its tokens, what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._abi._params import fill
from ._abi._structs import ls_rows, ls_snapshot_plan
from .device import DeviceLike, StreamLike
from .tensors import Tensor, TensorLike, indices

#: Any slot outside [0, P) is padding: nothing is read or written, its output is zero.
PAD_SLOT = -1
#: Chunk borders lie at absolute multiples of this many tokens in the sequence.
CHUNK_TOKENS = 64


class Rows:
    """N rows and T packed tokens; row n owns tokens [query_start_loc[n], query_start_loc[n + 1]).

    slot [N]: pool slot of each row; outside [0, P) = padding.
    query_start_loc [N + 1]: from 0, monotone; not needed by decode, where token n is row n.
    start [N]: tokens the slot already holds; 0 = fresh, the slot's bytes are not looked at. None:
        in decode every row resumes.
    num_valid [N]: real tokens of each row; None = all.
    Arrays of int32 or int64 are used as they are; lists become arrays.
    """

    def __init__(
        self,
        slot: TensorLike,
        query_start_loc: TensorLike | None = None,
        start: TensorLike | None = None,
        num_valid: TensorLike | None = None,
    ) -> None:
        def view(value: Any, name: str, dtype: Any) -> Tensor | None:
            return None if value is None else indices(value, name, dtype)

        self.slot = indices(slot, "slot")
        self.query_start_loc = view(query_start_loc, "query_start_loc", np.int64)
        self.start = view(start, "start", np.int64)
        self.num_valid = view(num_valid, "num_valid", np.int32)

    @classmethod
    def of(
        cls,
        slot: TensorLike,
        tokens: Sequence[int],
        start: TensorLike | None = None,
        num_valid: TensorLike | None = None,
    ) -> Rows:
        """Rows of so many tokens each; `start` None = all fresh."""
        offsets = np.concatenate([[0], np.cumsum(np.asarray(tokens, np.int64))]).astype(np.int64)
        fresh = np.zeros(len(tokens), np.int64) if start is None else start
        return cls(slot, offsets, fresh, num_valid)

    def to(self, device: DeviceLike, *, stream: StreamLike = None) -> Rows:
        """Copies on a device."""
        parts = (self.slot, self.query_start_loc, self.start, self.num_valid)
        moved = [None if one is None else one.to(device, stream=stream) for one in parts]
        assert moved[0] is not None
        return Rows(moved[0], *moved[1:])

    def struct(self) -> ls_rows:
        """As the C interface takes them."""
        return fill(
            ls_rows,
            slot=self.slot,
            query_start_loc=self.query_start_loc,
            start=self.start,
            num_valid=self.num_valid,
        )


class Snapshots:
    """States to keep on the way: entry m asks that after exactly position[m] tokens of row row[m]
    the state (and window) be copied to slot slot[m] of the same pool.

    Positions are absolute in the sequence, in (start, start + valid tokens]. Taking a snapshot
    never changes an output.
    """

    def __init__(self, row: TensorLike, position: TensorLike, slot: TensorLike) -> None:
        self.row = indices(row, "snapshots.row")
        self.position = indices(position, "snapshots.position", np.int64)
        self.slot = indices(slot, "snapshots.slot")

    def to(self, device: DeviceLike, *, stream: StreamLike = None) -> Snapshots:
        """A copy on a device."""
        parts = (self.row, self.position, self.slot)
        return Snapshots(*(one.to(device, stream=stream) for one in parts))

    def struct(self) -> ls_snapshot_plan:
        """As the C interface takes them."""
        return fill(ls_snapshot_plan, row=self.row, position=self.position, slot=self.slot)


def snapshot_struct(snapshots: Snapshots | None) -> ls_snapshot_plan | None:
    """The struct, or None."""
    return None if snapshots is None else snapshots.struct()
