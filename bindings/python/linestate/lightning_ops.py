"""Lightning attention. Per head, state S [K, V] with K = V = D, lambda = exp(-slope), in f32:

S <- lambda * S + k v^T;  o = scale * S^T q
"""

from __future__ import annotations

from ctypes import POINTER, c_float
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ._abi import _constants as c
from ._abi._library import call
from ._abi._params import choice, fill
from ._abi._structs import (
    ls_lightning_commit_params,
    ls_lightning_params,
    ls_lightning_record,
    ls_lightning_verify_params,
)
from .context import CallOptions, checked, run
from .device import DeviceLike
from .rows import Rows, Snapshots, snapshot_struct
from .tensors import Tensor, TensorLike, empty, indices, output, result, tensor

SLOPE_RULES = {
    "layer_over_last": c.LS_SLOPE_LAYER_OVER_LAST,
    "layer_over_last_plus_eps": c.LS_SLOPE_LAYER_OVER_LAST_PLUS_EPS,
    "previous_layer": c.LS_SLOPE_PREVIOUS_LAYER,
}


class LightningOptions(CallOptions, total=False):
    """Keyword options that every Lightning operator takes, besides those of `CallOptions`.

    scale: None = 1; models of the variant seg_la want D ** -0.5.
    out [T, H, D]: where to write; None = a new tensor of q's dtype. Must overlap no input.
    layer: only for error reports.
    """

    scale: float | None
    out: TensorLike | None
    layer: int


class LightningCall(LightningOptions):
    """What every Lightning operator takes, by name.

    q, k, v [T, H, D]: f32, bf16 or f16, one dtype; D a multiple of 16 up to 256. slopes [H] f32,
    >= 0. state [P, H, K, V]: f32, bf16 or f16. rows: which tokens are whose.
    """

    q: TensorLike
    k: TensorLike
    v: TensorLike
    slopes: TensorLike
    state: TensorLike
    rows: Rows


class LightningSnapshotCall(LightningCall, total=False):
    """`LightningCall`, and states to keep on the way."""

    snapshots: Snapshots | None


def lightning_params(shape: type, call_of: Any) -> tuple[ls_lightning_params, Tensor]:
    """The operator's arguments and its output; `shape` is the TypedDict of the call."""
    x: LightningSnapshotCall = checked(shape, call_of)
    query = tensor(x["q"], "q")
    out = result(x.get("out"), query.shape, query)
    params = fill(
        ls_lightning_params,
        rows=x["rows"].struct(),
        snapshots=snapshot_struct(x.get("snapshots")),
        q=query,
        k=tensor(x["k"], "k"),
        v=tensor(x["v"], "v"),
        slopes=tensor(x["slopes"], "slopes"),
        state=output(x["state"], "state"),
        out=out,
        scale=x.get("scale"),
        layer=x.get("layer", 0),
    )
    return params, out


def lightning_prefill(**call: Unpack[LightningSnapshotCall]) -> Tensor:
    """Rows of any length, fresh or resumed; the final state is written in place.

    Arguments: `LightningCall`, `LightningOptions`. Returns out [T, H, D]; tokens beyond num_valid
    are zero. Errors: InvalidArgumentError names the tensor; UnsupportedError lists every refusal.
    """
    params, out = lightning_params(LightningSnapshotCall, call)
    run("lightning_prefill", params, call)
    return out


def lightning_decode(**call: Unpack[LightningSnapshotCall]) -> Tensor:
    """One token a row: token n is row n, so T = N. `rows.start` None = every row resumes.

    Arguments, errors: as `lightning_prefill`.
    """
    params, out = lightning_params(LightningSnapshotCall, call)
    run("lightning_decode", params, call)
    return out


@dataclass
class LightningRecord:
    """What verify remembers of each draft token: k and v [T, H, D], contiguous."""

    k: TensorLike
    v: TensorLike

    @classmethod
    def empty(
        cls, tokens: int, *, heads: int, dim: int, dtype: Any, device: DeviceLike = "cpu"
    ) -> LightningRecord:
        """Room for so many draft tokens; `dtype` is that of k."""
        shape = (tokens, heads, dim)
        return cls(empty(shape, dtype, device), empty(shape, dtype, device))

    def struct(self) -> ls_lightning_record:
        """As the C interface takes it."""
        k, v = output(self.k, "record.k"), output(self.v, "record.v")
        return fill(ls_lightning_record, k=k, v=v)


def lightning_verify(
    record: LightningRecord, *, parent: TensorLike | None = None, **call: Unpack[LightningCall]
) -> Tensor:
    """Outputs for draft tokens, each from its own path; the state is only read.

    parent and record: as `kda_verify`. Other arguments, errors: as `lightning_prefill`.
    """
    params, out = lightning_params(LightningCall, call)
    verify = fill(
        ls_lightning_verify_params,
        lightning=params,
        record=record.struct(),
        parent=None if parent is None else indices(parent, "parent"),
    )
    run("lightning_verify", verify, call)
    return out


def lightning_commit(
    rows: Rows,
    record: LightningRecord,
    accepted_node: TensorLike,
    slopes: TensorLike,
    state: TensorLike,
    *,
    parent: TensorLike | None = None,
    snapshots: Snapshots | None = None,
    taken: TensorLike | None = None,
    layer: int = 0,
    **options: Unpack[CallOptions],
) -> None:
    """The state becomes what decoding root..accepted_node gives. Arguments: as `kda_commit`."""
    params = fill(
        ls_lightning_commit_params,
        rows=rows.struct(),
        record=record.struct(),
        snapshots=snapshot_struct(snapshots),
        parent=None if parent is None else indices(parent, "parent"),
        accepted_node=indices(accepted_node, "accepted_node"),
        slopes=tensor(slopes, "slopes"),
        state=output(state, "state"),
        taken=None if taken is None else output(taken, "taken"),
        layer=layer,
    )
    run("lightning_commit", params, options)


def lightning_slopes(
    heads: int,
    layer: int,
    num_layers: int,
    *,
    tp_rank: int = 0,
    tp_size: int = 1,
    rule: str = "layer_over_last",
) -> NDArray[np.float32]:
    """Decay slopes [heads / tp_size] of the rank's heads.

    `layer` is the global decoder layer and `num_layers` counts all of them, softmax ones too.
    `rule` is one of `SLOPE_RULES`. Errors: InvalidArgumentError, ValueError (rule).
    """
    slopes = np.zeros(max(heads // max(tp_size, 1), 1), np.float32)
    number = choice("rule", rule, SLOPE_RULES)
    address = slopes.ctypes.data_as(POINTER(c_float))
    call(
        "lightning_slopes", heads, layer, num_layers, tp_rank, tp_size, number, address, slopes.size
    )
    return slopes
