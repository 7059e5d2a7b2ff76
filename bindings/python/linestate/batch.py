"""A batch of rows, checked and prepared once for all layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np

from ._abi import _constants as c
from ._abi._library import Handle, call, create
from ._abi._params import array_of, choice, fill
from ._abi._structs import (
    ls_batch_counts,
    ls_forward_batch,
    ls_forward_capacity,
    ls_row,
    ls_segment,
    ls_slot_restore,
    ls_snapshot_request,
    ls_tensor,
)
from .context import Context, context_or_default
from .device import DeviceLike, device_codes
from .errors import NotFoundError
from .pool import Pool
from .rows import PAD_SLOT
from .tensors import Tensor, TensorLike, indices

ROW_KINDS = {
    "extend": c.LS_ROW_EXTEND,
    "decode": c.LS_ROW_DECODE,
    "verify": c.LS_ROW_VERIFY,
    "pad": c.LS_ROW_PAD,
}


@dataclass(frozen=True)
class Row:
    """One sequence of a batch. kind: "extend", "decode", "verify" or "pad", never inferred.

    slot: pool slot. start: tokens it already holds, 0 = fresh. tokens: of this call. num_valid:
    real tokens among them, -1 = all. force_flush: with a replay ring, write the state at this
    token.
    """

    slot: int = PAD_SLOT
    kind: str = "pad"
    start: int = 0
    tokens: int = 0
    num_valid: int = -1
    force_flush: bool = False

    def struct(self) -> ls_row:
        """As the C interface takes it."""
        return fill(
            ls_row,
            slot=self.slot,
            kind=choice("kind", self.kind, ROW_KINDS),
            start=self.start,
            tokens=self.tokens,
            num_valid=self.num_valid,
            force_flush=int(self.force_flush),
        )


@dataclass(frozen=True)
class SnapshotRequest:
    """The state after exactly `position` tokens of row `row`, to be kept in `slot`."""

    row: int
    position: int
    slot: int


@dataclass(frozen=True)
class BatchCounts:
    """Sizes of the prepared batch; token_capacity is the first dimension of the token tensors."""

    num_rows: int
    num_tokens: int
    token_capacity: int
    num_prefills: int
    num_decodes: int
    num_prefill_tokens: int


@dataclass(frozen=True)
class Segment:
    """Rows [row_begin, row_end) of one kind with their tokens [token_begin, token_end).

    Tensors are views of the metadata, None where they are of no use: slot, start, num_valid [rows],
    query_start_loc [rows + 1] from the segment's first token, parent [tokens], taken [snapshots].
    The next `prepare` refills them.
    """

    row_begin: int
    row_end: int
    token_begin: int
    token_end: int
    slot: Tensor | None
    query_start_loc: Tensor | None
    start: Tensor | None
    num_valid: Tensor | None
    parent: Tensor | None
    taken: Tensor | None


@dataclass(frozen=True)
class SlotRestore:
    """A slot pack (`Pool.pack`) that comes back into a slot before the batch. The flags: as
    `Pool.unpack`.
    """

    pack: bytes
    slot: int
    allow_state_dtype_change: bool = False
    allow_other_numerics: bool = False

    def struct(self) -> ls_slot_restore:
        """As the C interface takes it."""
        data = bytes(self.pack)
        struct = fill(
            ls_slot_restore,
            pack=ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p),
            pack_size=len(data),
            slot=self.slot,
            allow_state_dtype_change=int(self.allow_state_dtype_change),
            allow_other_numerics=int(self.allow_other_numerics),
        )
        struct.data = data  # no field: it lives as long as the struct
        return struct


def _int32_array(values: Sequence[int] | None) -> tuple[Any, int]:
    if values is None or len(values) == 0:
        return None, 0
    array = np.ascontiguousarray(values, np.int32)
    pointer = array.ctypes.data_as(POINTER(c_int32))
    pointer.kept = array  # type: ignore[attr-defined]
    return pointer, array.size


class ForwardMetadata(Handle):
    """What all layers of a forward pass share. One thread prepares; then any number may run layers.

    max_rows, verify_tokens (of batches with `parent`), max_snapshots: the room it has.
    """

    _destroy = "metadata_destroy"

    def __init__(
        self,
        max_rows: int,
        *,
        verify_tokens: int = 0,
        max_snapshots: int = 0,
        device: DeviceLike = "cpu",
    ) -> None:
        capacity = fill(
            ls_forward_capacity,
            rows=max_rows,
            verify_tokens=verify_tokens,
            snapshots=max_snapshots,
        )
        super().__init__(create("metadata_create", byref(capacity), *device_codes(device)))

    def prepare(
        self,
        rows: Sequence[Row],
        pool: Pool,
        *,
        token_capacity: int = 0,
        clear: Sequence[int] | None = None,
        copy: Sequence[tuple[int, int]] | None = None,
        parent: Sequence[int] | None = None,
        snapshots: Sequence[SnapshotRequest] | None = None,
        slot_table: TensorLike | None = None,
        restores: Sequence[SlotRestore] | None = None,
        context: Context | None = None,
    ) -> None:
        """Checks the batch and runs its slot work: `clear` slots, then `copy` (source, target)
        pairs, then `restores`, all layers, before anything else. Rows of one kind are contiguous.

        token_capacity: tokens of the layers' tensors, 0 = the rows' tokens. parent: of the verify
        rows' tokens, None = chains. slot_table: virtual to pool slots; every id above is virtual
        then. Errors: InvalidArgumentError naming row and field; nothing has happened then.
        """
        requests = [
            fill(ls_snapshot_request, position=one.position, row=one.row, slot=one.slot)
            for one in snapshots or ()
        ]
        packs = [one.struct() for one in restores or ()]
        clears, num_clears = _int32_array(clear)
        sources, num_copies = _int32_array([one[0] for one in copy or ()])
        targets, _ = _int32_array([one[1] for one in copy or ()])
        parents, num_parents = _int32_array(parent)
        batch = fill(
            ls_forward_batch,
            rows=array_of(ls_row, [row.struct() for row in rows]),
            num_rows=len(rows),
            token_capacity=token_capacity,
            clear=clears,
            num_clears=num_clears,
            copy_src=sources,
            copy_dst=targets,
            num_copies=num_copies,
            parent=parents,
            num_parents=num_parents,
            snapshots=array_of(ls_snapshot_request, requests),
            num_snapshots=len(requests),
            slot_table=None if slot_table is None else indices(slot_table, "slot_table"),
            restores=array_of(ls_slot_restore, packs),
            num_restores=len(packs),
        )
        where = context_or_default(context)
        call("metadata_prepare", self.pointer, byref(batch), pool.pointer, byref(where.struct))

    @property
    def counts(self) -> BatchCounts:
        """Of the prepared batch."""
        counts = fill(ls_batch_counts)
        call("metadata_counts", self.pointer, byref(counts))
        names = [one.name for one in dataclass_fields(BatchCounts)]
        return BatchCounts(*(getattr(counts, name) for name in names))

    def snapshot_taken(self, request: int) -> bool:
        """Whether snapshot `request` of the batch was taken. Errors: InvalidArgumentError."""
        taken = c_int32()
        call("metadata_snapshot_taken", self.pointer, request, byref(taken))
        return bool(taken.value)

    def segment(self, kind: str) -> Segment | None:
        """The rows of a kind; None when the batch has none."""
        segment = fill(ls_segment)
        number = choice("kind", kind, ROW_KINDS)
        try:
            call("metadata_segment", self.pointer, number, byref(segment))
        except NotFoundError:
            return None

        def view(struct: ls_tensor) -> Tensor | None:
            return Tensor(struct, (self, segment), writable=False) if struct.rank else None

        return Segment(
            segment.row_begin,
            segment.row_end,
            segment.token_begin,
            segment.token_end,
            view(segment.slot),
            view(segment.query_start_loc),
            view(segment.start),
            view(segment.num_valid),
            view(segment.parent),
            view(segment.taken),
        )
