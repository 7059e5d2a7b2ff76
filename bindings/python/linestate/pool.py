"""The state pool: slots, and for every linear layer a recurrent state and (KDA) a window a slot."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_float, c_int32, c_int64, c_size_t, sizeof
from typing import Any

import numpy as np

from ._abi._library import Handle, call, create
from ._abi._params import array_of, choice, fill
from ._abi._structs import (
    ls_adopted_layer,
    ls_event_done,
    ls_pool_spec,
    ls_replay_ring,
    ls_tensor,
    ls_transfer_descriptor,
    ls_unpack_options,
)
from .context import Context, context_or_default
from .device import DeviceLike, device_codes
from .dtypes import code_of
from .model import Model
from .slot_ops import ReplayRing
from .tensors import Tensor, TensorLike, indices, output
from .transfer import SCHEMES, TransferDescriptor


class PoolSpec:
    """What a pool of a model's layers holds.

    state_dtype: f32, bf16 or f16. window_dtype: the io dtype, or f32. replay_length: R of the
    replay rings, 1 = every token writes the state; replay_dtype: f32 or f16; replay_slopes: with R
    > 1, for every layer None or, for Lightning layers, slopes [H].
    """

    def __init__(
        self,
        model: Model,
        *,
        state_dtype: Any = "f32",
        window_dtype: Any = "bf16",
        replay_length: int = 1,
        replay_dtype: Any = "f32",
        replay_slopes: Sequence[Any] | None = None,
    ) -> None:
        self.model = model
        slopes = None
        if replay_slopes is not None:
            self._slopes = [
                None if one is None else np.ascontiguousarray(one, np.float32)
                for one in replay_slopes
            ]
            pointers: list[Any] = [
                None if one is None else one.ctypes.data_as(POINTER(c_float))
                for one in self._slopes
            ]
            slopes = (POINTER(c_float) * len(pointers))(*pointers)
        self.struct = fill(
            ls_pool_spec,
            model=model.pointer,
            state_dtype=code_of(state_dtype),
            window_dtype=code_of(window_dtype),
            replay_length=replay_length,
            replay_dtype=code_of(replay_dtype),
            replay_slopes=slopes,
        )

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that one slot takes over all layers."""
        size = c_int64()
        call("bytes_per_slot", byref(self.struct), byref(size))
        return size.value

    def max_slots(self, budget_bytes: int) -> int:
        """Slots that fit; 0 when not even one does."""
        slots = c_int64()
        call("max_slots", byref(self.struct), budget_bytes, byref(slots))
        return slots.value

    def pack_bytes(self, scheme: str = "exact") -> int:
        """Size of one packed slot."""
        size = c_int64()
        number = choice("scheme", scheme, SCHEMES)
        call("slot_pack_bytes", byref(self.struct), number, byref(size))
        return size.value


class Pool(Handle):
    """P slots. The slot table has one owner thread; views may be read from any.

    Slots are not cleared when they change hands: rows with start = 0 select zeros.
    """

    _destroy = "pool_destroy"

    def __init__(self, pointer: ctypes.c_void_p, spec: PoolSpec, owner: object = None) -> None:
        super().__init__(pointer)
        self.spec = spec
        self._owner = owner
        self._events: dict[int, Any] = {}

    @classmethod
    def create(cls, spec: PoolSpec, slots: int, *, device: DeviceLike = "cpu") -> Pool:
        """Memory of the library's own, on a device.

        Errors: InvalidArgumentError, UnsupportedError (no such device), ResourceExhaustedError.
        """
        return cls(create("pool_create", byref(spec.struct), slots, *device_codes(device)), spec)

    @classmethod
    def adopt(cls, spec: PoolSpec, layers: Sequence[tuple[TensorLike, TensorLike | None]]) -> Pool:
        """Memory of the caller's: (recurrent, window) for every layer, window None without one.

        recurrent [P, HV, V, K] for KDA, [P, H, K, V] for Lightning; window [P, channels, W - 1].
        Any strides. Errors: InvalidArgumentError naming layer and tensor.
        """
        entries, views = [], []
        for i, (recurrent, window) in enumerate(layers):
            state = output(recurrent, f"layers[{i}].recurrent")
            tail = None if window is None else output(window, f"layers[{i}].window")
            views += [state, tail]
            entries.append(fill(ls_adopted_layer, recurrent=state, conv_window=tail))
        array = array_of(ls_adopted_layer, entries)
        pointer = create("pool_adopt", byref(spec.struct), array, len(entries))
        return cls(pointer, spec, views)

    def _count(self, name: str, *arguments: Any) -> int:
        value = c_int64()
        call(f"pool_{name}", self.pointer, *arguments, byref(value))
        return value.value

    @property
    def num_slots(self) -> int:
        """P."""
        return self._count("num_slots")

    @property
    def num_layers(self) -> int:
        """Linear layers."""
        return self._count("num_layers")

    @property
    def free_slots(self) -> int:
        """Slots that `allocate` could hand out now."""
        return self._count("free_slots")

    @property
    def in_flight_slots(self) -> int:
        """Retired slots whose event is pending."""
        return self._count("in_flight_slots")

    def _view(self, name: str, layer: int) -> Tensor | None:
        struct = ls_tensor()
        call(f"pool_{name}", self.pointer, layer, byref(struct))
        return Tensor(struct, self) if struct.rank else None

    def recurrent(self, layer: int) -> Tensor:
        """State of a layer, [P, HV, V, K] or [P, H, K, V]; shared memory, valid until
        `release_memory` or `close`. Errors: InvalidArgumentError, FailedPreconditionError.
        """
        view = self._view("recurrent", layer)
        assert view is not None
        return view

    def conv_window(self, layer: int) -> Tensor | None:
        """Window of a layer [P, channels, W - 1]; None for a layer without one."""
        return self._view("conv_window", layer)

    def replay_ring(self, layer: int) -> ReplayRing:
        """Pending records of a layer, shared memory. Errors: FailedPreconditionError for a pool of
        ring length 1, or without its memory.
        """
        ring = fill(ls_replay_ring)
        call("pool_replay_ring", self.pointer, layer, byref(ring))
        parts = (ring.keys, ring.values, ring.gamma)
        keys, values, gamma = (Tensor(one, (self, ring)) if one.rank else None for one in parts)
        assert keys is not None and values is not None
        return ReplayRing(keys, values, gamma)

    def replay_cursor(self) -> Tensor:
        """Pending records of every slot, [P] int32, shared by the layers. Errors: as above."""
        cursor = ls_tensor()
        call("pool_replay_cursor", self.pointer, byref(cursor))
        return Tensor(cursor, self)

    def transfer_descriptors(self) -> list[TransferDescriptor]:
        """Where the pool's bytes lie, one a part and layer, for engines that move them.

        Errors: FailedPreconditionError (no memory, or records pending in a replay ring).
        """
        count = c_size_t()
        call("transfer_descriptors", self.pointer, None, 0, byref(count))
        array = (ls_transfer_descriptor * count.value)()
        if count.value:
            array[0].struct_size = sizeof(ls_transfer_descriptor)
            call("transfer_descriptors", self.pointer, array, count, byref(count))
        return [TransferDescriptor.of(one) for one in array]

    def planes(self) -> list[Tensor]:
        """Every state and window of every layer, as `state_clear` and `state_copy` take them."""
        found = []
        for layer in range(self.num_layers):
            found += [self.recurrent(layer), self.conv_window(layer)]
        return [plane for plane in found if plane is not None]

    def allocate(self) -> int:
        """Lowest free slot whose event has passed. Errors: ResourceExhaustedError."""
        slot = c_int32()
        call("pool_allocate", self.pointer, byref(slot))
        self._events.pop(slot.value, None)
        return slot.value

    def free(self, slot: int) -> None:
        """Errors: InvalidArgumentError when the slot is not allocated."""
        call("pool_free", self.pointer, slot)

    def retire(self, slot: int, done: Callable[[], bool]) -> None:
        """As `free`, but the slot is handed out again only once done() is true. It is polled by
        `allocate` and the counts, never waited for, and must not raise.
        """
        event = ls_event_done(lambda handle: bool(done()))
        call("pool_retire", self.pointer, slot, event, None)
        self._events[slot] = event

    def allocated(self, slot: int) -> bool:
        """Whether somebody holds the slot."""
        answer = c_int32()
        call("pool_allocated", self.pointer, slot, byref(answer))
        return bool(answer.value)

    def fold(self, slots: TensorLike, *, context: Context | None = None) -> None:
        """Empties the replay rings of `slots` [n] into the state; nothing to do without rings."""
        view = indices(slots, "slots")
        call("pool_fold", self.pointer, view.struct, byref(context_or_default(context).struct))

    def mark_snapshot(self, slot: int, position: int) -> None:
        """Notes that the slot holds the state after exactly `position` tokens."""
        call("pool_mark_snapshot", self.pointer, slot, position)

    def clear_snapshot(self, slot: int) -> None:
        """Forgets the mark; harmless without one."""
        call("pool_clear_snapshot", self.pointer, slot)

    def snapshot_position(self, slot: int) -> int:
        """Tokens the snapshot stands for. Errors: FailedPreconditionError without a mark."""
        return self._count("snapshot_position", slot)

    def release_memory(self) -> None:
        """Gives the memory back: views die, slots stay allocated with undefined content."""
        call("pool_release_memory", self.pointer)

    def rebind_memory(self) -> None:
        """Memory anew. Errors: ResourceExhaustedError."""
        call("pool_rebind_memory", self.pointer)

    @property
    def memory_bound(self) -> bool:
        """False between `release_memory` and `rebind_memory`."""
        answer = c_int32()
        call("pool_memory_bound", self.pointer, byref(answer))
        return bool(answer.value)

    def pack(self, slot: int, position: int, scheme: str = "exact") -> bytes:
        """One slot, all layers, in one buffer; scheme "exact", "f16" or "int8".

        Errors: InvalidArgumentError, FailedPreconditionError (a value the scheme cannot hold).
        """
        size = self.spec.pack_bytes(scheme)
        buffer = ctypes.create_string_buffer(size)
        written = c_int64()
        number = choice("scheme", scheme, SCHEMES)
        call("pack_slot", self.pointer, slot, position, number, buffer, size, byref(written))
        return buffer.raw[: written.value]

    def unpack(
        self,
        buffer: bytes,
        slot: int,
        *,
        allow_state_dtype_change: bool = False,
        allow_other_numerics: bool = False,
    ) -> int:
        """Restores a pack into the slot; the position it stands for. On an error nothing changed.

        Errors: DataLossError (damaged), InvalidArgumentError (another pool's),
        FailedPreconditionError (another numerics version).
        """
        options = fill(
            ls_unpack_options,
            allow_state_dtype_change=int(allow_state_dtype_change),
            allow_other_numerics=int(allow_other_numerics),
        )
        data = bytes(buffer)
        position = c_int64()
        arguments = (data, len(data), self.pointer, slot, byref(options), byref(position))
        call("unpack_slot", *arguments)
        return position.value
