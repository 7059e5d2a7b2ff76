"""Slots of pooled tensors, draft trees, and replay rings (buffered decode)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from ._abi._params import array_of, fill
from ._abi._structs import (
    ls_kda_replay_params,
    ls_lightning_replay_params,
    ls_replay_fold_layer,
    ls_replay_fold_params,
    ls_replay_ring,
    ls_replay_step_params,
    ls_state_clear_params,
    ls_state_copy_params,
    ls_tensor,
    ls_tree_from_links_params,
)
from .context import CallOptions, run
from .kda_ops import KdaCall, kda_params
from .lightning_ops import LightningCall, lightning_params
from .rows import Rows
from .tensors import Tensor, TensorLike, empty, given, indices, output, tensor


def _planes(tensors: Sequence[Tensor]) -> Any:
    array = array_of(ls_tensor, [one.struct for one in tensors])
    if array is not None:
        array.kept = list(tensors)
    return array


def state_clear(
    planes: Sequence[TensorLike],
    slots: TensorLike,
    **options: Unpack[CallOptions],
) -> None:
    """Fills `slots` [n] with zero in every plane [P, ...]; ids outside [0, P) are skipped.

    Errors: InvalidArgumentError (rank, dtype, planes of different P).
    """
    views = [output(plane, f"planes[{i}]") for i, plane in enumerate(planes)]
    params = fill(
        ls_state_clear_params,
        planes=_planes(views),
        num_planes=len(views),
        slots=indices(slots, "slots"),
    )
    run("state_clear", params, options)


def state_copy(
    src: Sequence[TensorLike],
    dst: Sequence[TensorLike],
    src_slots: TensorLike,
    dst_slots: TensorLike,
    **options: Unpack[CallOptions],
) -> None:
    """dst[dst_slots[i]] = src[src_slots[i]] in every pair of planes [P, ...].

    Equal dtypes copy bits, f32, bf16 and f16 convert among each other. An id outside its pool skips
    i. Errors: InvalidArgumentError, also for a slot written twice or read and written.
    """
    sources = [tensor(plane, f"src[{i}]") for i, plane in enumerate(src)]
    targets = [output(plane, f"dst[{i}]") for i, plane in enumerate(dst)]
    params = fill(
        ls_state_copy_params,
        src=_planes(sources),
        num_src=len(sources),
        dst=_planes(targets),
        num_dst=len(targets),
        src_slots=indices(src_slots, "src_slots"),
        dst_slots=indices(dst_slots, "dst_slots"),
    )
    run("state_copy", params, options)


def tree_from_links(
    first_child: TensorLike,
    next_sibling: TensorLike,
    **options: Unpack[CallOptions],
) -> Tensor:
    """parent [N, D] int32 of draft trees given as links [N, D], -1 = none.

    Nodes that nobody reaches from node 0 get -1. Errors: InvalidArgumentError for a link that does
    not point to a later node, or a node named twice.
    """
    child, sibling = indices(first_child, "first_child"), indices(next_sibling, "next_sibling")
    parent = empty(child.shape, "i32", child.device)
    params = fill(
        ls_tree_from_links_params,
        first_child=child,
        next_sibling=sibling,
        parent=parent,
    )
    run("tree_from_links", params, options)
    return parent


@dataclass
class ReplayRing:
    """Pending records of one layer, f32 or f16. R - 1 may be 0.

    KDA: keys [P, HV, R-1, K], values [P, HV, R-1, V], gamma [P, HV, K] f32. Lightning: keys and
    values [P, H, R-1, D], no gamma.
    """

    keys: TensorLike
    values: TensorLike
    gamma: TensorLike | None = None

    def struct(self) -> ls_replay_ring:
        """As the C interface takes it."""
        return fill(
            ls_replay_ring,
            keys=output(self.keys, "ring.keys"),
            values=output(self.values, "ring.values"),
            gamma=None if self.gamma is None else output(self.gamma, "ring.gamma"),
        )


def _ring_members(ring: ReplayRing, pending: TensorLike, flush: TensorLike) -> dict[str, Any]:
    return {
        "ring": ring.struct(),
        "pending": tensor(pending, "pending"),
        "flush": tensor(flush, "flush"),
    }


def replay_step_begin(
    rows: Rows,
    cursor: TensorLike,
    *,
    ring_length: int,
    force_flush: TensorLike | None = None,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, Tensor]:
    """Once a forward pass: (pending [N], flush [N]) for every layer; advances `cursor`.

    cursor [P] int32: pending records of every slot, in place. ring_length: R, 1 to 64. force_flush
    [N] uint8: these rows write the state at this token. Errors: InvalidArgumentError.
    """
    pending = empty(rows.slot.shape, "i32", rows.slot.device)
    flush = empty(rows.slot.shape, "u8", rows.slot.device)
    params = fill(
        ls_replay_step_params,
        rows=rows.struct(),
        force_flush=given(force_flush, "force_flush"),
        cursor=output(cursor, "cursor"),
        pending=pending,
        flush=flush,
        ring_length=ring_length,
    )
    run("replay_step_begin", params, options)
    return pending, flush


def kda_decode_replay(
    ring: ReplayRing, pending: TensorLike, flush: TensorLike, **call: Unpack[KdaCall]
) -> Tensor:
    """`kda_decode` that writes the state only when a row flushes; R = 1 gives its bits.

    pending, flush: of `replay_step_begin`. Other arguments, errors: as `kda_decode`.
    """
    kda, out = kda_params(KdaCall, call)
    params = fill(ls_kda_replay_params, kda=kda, **_ring_members(ring, pending, flush))
    run("kda_decode_replay", params, call)
    return out


def lightning_decode_replay(
    ring: ReplayRing, pending: TensorLike, flush: TensorLike, **call: Unpack[LightningCall]
) -> Tensor:
    """`lightning_decode` that writes the state only when a row flushes. As `kda_decode_replay`."""
    lightning, out = lightning_params(LightningCall, call)
    members = _ring_members(ring, pending, flush)
    params = fill(ls_lightning_replay_params, lightning=lightning, **members)
    run("lightning_decode_replay", params, call)
    return out


@dataclass
class FoldLayer:
    """One layer of `replay_fold`; slopes [H] f32 mark a Lightning layer."""

    state: TensorLike
    ring: ReplayRing
    slopes: TensorLike | None = None


def replay_fold(
    layers: Sequence[FoldLayer],
    slots: TensorLike,
    cursor: TensorLike,
    **options: Unpack[CallOptions],
) -> None:
    """The states of `slots` [n] take their pending records; the rings are empty then.

    cursor [P] int32, in place; all layers share it. Errors: InvalidArgumentError.
    """
    structs = [
        fill(
            ls_replay_fold_layer,
            ring=layer.ring.struct(),
            state=output(layer.state, f"layers[{i}].state"),
            slopes=given(layer.slopes, f"layers[{i}].slopes"),
            layer=i,
        )
        for i, layer in enumerate(layers)
    ]
    params = fill(
        ls_replay_fold_params,
        layers=array_of(ls_replay_fold_layer, structs),
        num_layers=len(structs),
        slots=indices(slots, "slots"),
        cursor=output(cursor, "cursor"),
    )
    run("replay_fold", params, options)
