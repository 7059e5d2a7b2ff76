"""Where a pool's bytes lie, for engines that move them, and what a slot pack says of itself."""

from __future__ import annotations

from ctypes import byref, c_size_t, sizeof
from dataclasses import dataclass, fields

from ._abi import _constants as c
from ._abi._library import call
from ._abi._params import choice, fill
from ._abi._structs import ls_layer_state, ls_slot_pack_info, ls_transfer_descriptor
from .dtypes import NAMES, code_of

SCHEMES = {"exact": c.LS_PACK_EXACT, "f16": c.LS_PACK_F16, "int8": c.LS_PACK_INT8}
PARTS = {
    "recurrent": c.LS_PART_RECURRENT,
    "conv_q": c.LS_PART_CONV_Q,
    "conv_k": c.LS_PART_CONV_K,
    "conv_v": c.LS_PART_CONV_V,
}
LAYOUTS = {"vk": c.LS_LAYOUT_VK, "kv": c.LS_LAYOUT_KV}
ORDERS = {"last_fastest": c.LS_LAST_FASTEST, "first_fastest": c.LS_FIRST_FASTEST}


def _name(value: int, names: dict[str, int]) -> str:
    return next(name for name, number in names.items() if number == value)


@dataclass(frozen=True)
class TransferDescriptor:
    """One part ("recurrent", "conv_q", "conv_k", "conv_v") of one layer, in bytes.

    Slot s, head h, run r lie at base + s * slot_stride_bytes + h * head_stride_bytes + r *
    run_stride_bytes: run_bytes of them. `layout` is that of the recurrent part, `order` which of
    its dimensions runs fastest.
    """

    layer_id: int
    part: str
    dtype: str
    layout: str
    order: str
    base: int
    num_slots: int
    slot_stride_bytes: int
    bytes_per_slot: int
    heads: int
    head_stride_bytes: int
    bytes_per_head: int
    runs_per_head: int
    run_bytes: int
    run_stride_bytes: int

    @classmethod
    def of(cls, s: ls_transfer_descriptor) -> TransferDescriptor:
        """What the library says."""
        values = {one.name: getattr(s, one.name) for one in fields(cls)}
        values["part"], values["dtype"] = _name(s.part, PARTS), NAMES[s.dtype]
        values["layout"], values["order"] = _name(s.layout, LAYOUTS), _name(s.order, ORDERS)
        values["base"] = s.base or 0
        return cls(**values)

    def struct(self) -> ls_transfer_descriptor:
        """As the C interface takes it. Errors: ValueError, TypeError for an unknown name."""
        values = dict(vars(self))
        values["part"], values["dtype"] = choice("part", self.part, PARTS), code_of(self.dtype)
        values["layout"] = choice("layout", self.layout, LAYOUTS)
        values["order"] = choice("order", self.order, ORDERS)
        return fill(ls_transfer_descriptor, **values)

    @property
    def slot_contiguous(self) -> bool:
        """Whether the part's bytes of a slot lie side by side."""
        heads = self.heads == 1 or self.head_stride_bytes == self.bytes_per_head
        return heads and (self.runs_per_head == 1 or self.run_stride_bytes == self.run_bytes)

    def runs(self, slot: int) -> list[tuple[int, int]]:
        """(address, bytes) of every piece of a slot, head by head. Errors: ValueError."""
        if not 0 <= slot < self.num_slots:
            raise ValueError(f"slot: expected 0 to {self.num_slots - 1}, got {slot}")
        first = self.base + slot * self.slot_stride_bytes
        return [
            (first + h * self.head_stride_bytes + r * self.run_stride_bytes, self.run_bytes)
            for h in range(self.heads)
            for r in range(self.runs_per_head)
        ]


def check_transferable(a: TransferDescriptor, b: TransferDescriptor) -> None:
    """Passes when heads of the two are the same bytes. Errors: InvalidArgumentError naming the
    member that differs.
    """
    call("check_transferable", byref(a.struct()), byref(b.struct()))


@dataclass(frozen=True)
class PackedLayer:
    """One layer of a slot pack; conv_channels and conv_tail are 0 without a window."""

    layer_id: int
    layout: str
    heads: int
    k_dim: int
    v_dim: int
    conv_channels: int
    conv_tail: int


@dataclass(frozen=True)
class SlotPackInfo:
    """What a slot pack holds. The dtypes are those of the pool it came from."""

    position: int
    total_bytes: int
    scheme: str
    numerics_version: int
    state_dtype: str
    window_dtype: str
    layers: tuple[PackedLayer, ...]


def read_slot_pack(buffer: bytes) -> SlotPackInfo:
    """Reads and checks a pack without a pool, checksums too. Errors: DataLossError naming the
    field.
    """
    data = bytes(buffer)
    info, count = fill(ls_slot_pack_info), c_size_t()
    call("read_slot_pack", data, len(data), byref(info), None, 0, byref(count))
    array = (ls_layer_state * count.value)()
    if count.value:
        array[0].struct_size = sizeof(ls_layer_state)
        call("read_slot_pack", data, len(data), byref(info), array, count, byref(count))
    names = [one.name for one in fields(PackedLayer)]
    layers = []
    for one in array:
        values = {name: getattr(one, name) for name in names}
        layers.append(PackedLayer(**{**values, "layout": _name(one.layout, LAYOUTS)}))
    return SlotPackInfo(
        position=info.position,
        total_bytes=info.total_bytes,
        scheme=_name(info.scheme, SCHEMES),
        numerics_version=info.numerics_version,
        state_dtype=NAMES[info.state_dtype],
        window_dtype=NAMES[info.window_dtype],
        layers=tuple(layers),
    )
