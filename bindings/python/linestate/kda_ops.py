"""Kimi Delta Attention. Per value head j, with key head j // (HV // H) and state S [V, K], in f32:

q^ = q * rsqrt(sum q^2 + 1e-6), k^ likewise (unless qk_normalized)
S <- S * exp(g) per key channel; u = beta * (v - S k^); S <- S + u k^T; o = scale * S q^

The log decay g comes from `gate` (a below) by `gate_form`:
"softplus": g = -exp(A_log) * softplus(a + dt_bias)
"bounded": g = lower_bound * sigmoid(exp(A_log) * (a + dt_bias)), lower_bound < 0
"activated": g = a, which must be <= 0
and beta by `beta_form`: "logits" (sigmoid) or "probability".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from ._abi import _constants as c
from ._abi._library import call
from ._abi._params import choice, fill
from ._abi._structs import (
    ls_kda_commit_params,
    ls_kda_params,
    ls_kda_record,
    ls_kda_verify_params,
    ls_tensor,
)
from .context import CallOptions, checked, run
from .device import DeviceLike
from .rows import Rows, Snapshots, snapshot_struct
from .tensors import Tensor, TensorLike, empty, given, indices, output, result, tensor

GATES = {
    "softplus": c.LS_GATE_SOFTPLUS,
    "bounded": c.LS_GATE_BOUNDED,
    "activated": c.LS_GATE_ACTIVATED,
}
BETAS = {"logits": c.LS_BETA_LOGITS, "probability": c.LS_BETA_PROBABILITY}


class KdaOptions(CallOptions, total=False):
    """Keyword options that every KDA operator takes, besides those of `CallOptions`.

    A_log [HV] f32 and dt_bias [HV, K] f32: of the gate; not read for "activated".
    gate_form, beta_form, lower_bound: see the module.
    scale: None = K ** -0.5. qk_normalized: q and k already have unit length.
    out [T, HV, V]: where to write; None = a new tensor of q's dtype. Must overlap no input.
    layer: only for error reports.
    """

    A_log: TensorLike | None
    dt_bias: TensorLike | None
    gate_form: str
    beta_form: str
    lower_bound: float
    scale: float | None
    qk_normalized: bool
    out: TensorLike | None
    layer: int


class KdaCall(KdaOptions):
    """What every KDA operator takes, by name.

    q, k [T, H, K], v [T, HV, V]: f32, bf16 or f16, one dtype. gate [T, HV, K], beta [T, HV]: that
    dtype or f32. state [P, HV, V, K]: f32, bf16 or f16. rows: which tokens are whose. HV is a
    multiple of H; K and V are multiples of 16 up to 256.
    """

    q: TensorLike
    k: TensorLike
    v: TensorLike
    gate: TensorLike
    beta: TensorLike
    state: TensorLike
    rows: Rows


class KdaSnapshotCall(KdaCall, total=False):
    """`KdaCall`, and states to keep on the way."""

    snapshots: Snapshots | None


def kda_params(shape: type, call_of: Any) -> tuple[ls_kda_params, Tensor]:
    """The operator's arguments and its output; `shape` is the TypedDict of the call."""
    x: KdaSnapshotCall = checked(shape, call_of)
    query, values = tensor(x["q"], "q"), tensor(x["v"], "v")
    out = result(x.get("out"), values.shape, query)
    params = fill(
        ls_kda_params,
        rows=x["rows"].struct(),
        snapshots=snapshot_struct(x.get("snapshots")),
        q=query,
        k=tensor(x["k"], "k"),
        v=values,
        gate=tensor(x["gate"], "gate"),
        beta=tensor(x["beta"], "beta"),
        A_log=given(x.get("A_log"), "A_log"),
        dt_bias=given(x.get("dt_bias"), "dt_bias"),
        state=output(x["state"], "state"),
        out=out,
        gate_form=choice("gate_form", x.get("gate_form", "softplus"), GATES),
        beta_form=choice("beta_form", x.get("beta_form", "logits"), BETAS),
        lower_bound=x.get("lower_bound", 0.0),
        scale=x.get("scale"),
        qk_normalized=int(x.get("qk_normalized", False)),
        layer=x.get("layer", 0),
    )
    return params, out


def kda_prefill(**call: Unpack[KdaSnapshotCall]) -> Tensor:
    """Rows of any length, fresh or resumed; the final state is written in place.

    Arguments: `KdaCall`, `KdaOptions`. Returns out [T, HV, V]; tokens beyond num_valid are zero.
    Errors: InvalidArgumentError names the tensor; UnsupportedError lists every refusal.
    """
    params, out = kda_params(KdaSnapshotCall, call)
    run("kda_prefill", params, call)
    return out


def kda_decode(**call: Unpack[KdaSnapshotCall]) -> Tensor:
    """One token a row: token n is row n, so T = N. `rows.start` None = every row resumes.

    Arguments, errors: as `kda_prefill`.
    """
    params, out = kda_params(KdaSnapshotCall, call)
    run("kda_decode", params, call)
    return out


@dataclass
class KdaRecord:
    """What verify remembers of each draft token, and commit reads. Contiguous; belongs to the
    batch.

    u [T, HV, V] f32, k [T, H, K] of k's dtype, k_inverse_norm [T, H] f32, alpha [T, HV, K] f32.
    """

    u: TensorLike
    k: TensorLike
    k_inverse_norm: TensorLike
    alpha: TensorLike

    @classmethod
    def empty(
        cls,
        tokens: int,
        *,
        heads: int,
        value_heads: int,
        k_dim: int,
        v_dim: int,
        dtype: Any,
        device: DeviceLike = "cpu",
    ) -> KdaRecord:
        """Room for so many draft tokens; `dtype` is that of k."""
        return cls(
            empty((tokens, value_heads, v_dim), "f32", device),
            empty((tokens, heads, k_dim), dtype, device),
            empty((tokens, heads), "f32", device),
            empty((tokens, value_heads, k_dim), "f32", device),
        )

    def struct(self) -> ls_kda_record:
        """As the C interface takes it."""
        return fill(
            ls_kda_record,
            u=output(self.u, "record.u"),
            k=output(self.k, "record.k"),
            k_inverse_norm=output(self.k_inverse_norm, "record.k_inverse_norm"),
            alpha=output(self.alpha, "record.alpha"),
        )


def kda_verify(
    record: KdaRecord, *, parent: TensorLike | None = None, **call: Unpack[KdaCall]
) -> Tensor:
    """Outputs for draft tokens, each from its own path; the state is only read.

    parent [T] int32 or int64: the parent's node id within the row, -1 for the root, parent[i] < i;
    None = chains. record is filled for `kda_commit`. Other arguments, errors: as `kda_prefill`.
    """
    params, out = kda_params(KdaCall, call)
    verify = fill(
        ls_kda_verify_params,
        kda=params,
        record=record.struct(),
        parent=None if parent is None else indices(parent, "parent"),
    )
    run("kda_verify", verify, call)
    return out


def kda_commit(
    rows: Rows,
    record: KdaRecord,
    accepted_node: TensorLike,
    state: TensorLike,
    *,
    parent: TensorLike | None = None,
    conv_x: TensorLike | None = None,
    window: TensorLike | None = None,
    snapshots: Snapshots | None = None,
    taken: TensorLike | None = None,
    layer: int = 0,
    **options: Unpack[CallOptions],
) -> None:
    """State, and window where given, become what decoding root..accepted_node gives.

    rows, parent, record: of the verify call. accepted_node [N]: -1 = none (no bit changes); c
    accepted tokens of a chain are c - 1. conv_x [T, channels]: inputs of the convolution, given
    exactly when window [P, channels, W - 1] is. taken [M] uint8: 1 where a snapshot was taken.
    Errors: InvalidArgumentError, also for a node outside the row's; nothing is written then.
    """
    params = fill(
        ls_kda_commit_params,
        rows=rows.struct(),
        record=record.struct(),
        snapshots=snapshot_struct(snapshots),
        parent=None if parent is None else indices(parent, "parent"),
        accepted_node=indices(accepted_node, "accepted_node"),
        conv_x=given(conv_x, "conv_x"),
        state=output(state, "state"),
        window=None if window is None else output(window, "window"),
        taken=None if taken is None else output(taken, "taken"),
        layer=layer,
    )
    run("kda_commit", params, options)


def split_packed_qkv(
    packed: TensorLike, *, heads: int, value_heads: int, k_dim: int, v_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q [T, H, K], k [T, H, K] and v [T, HV, V] of packed [T, 2 * H * K + HV * V], as views.

    Errors: InvalidArgumentError when the width does not match.
    """
    whole = tensor(packed, "packed")
    parts = (ls_tensor(), ls_tensor(), ls_tensor())
    call("split_packed_qkv", whole.struct, heads, value_heads, k_dim, v_dim, *parts)
    q, k, v = (Tensor(part, whole.owner, whole.writable) for part in parts)
    return q, k, v
