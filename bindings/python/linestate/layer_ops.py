"""What surrounds the attention of a layer: the short convolution, and the norms."""

from __future__ import annotations

from typing import Any, Unpack

from ._abi import _constants as c
from ._abi._params import choice, fill
from ._abi._structs import (
    ls_causal_conv1d_params,
    ls_causal_conv1d_verify_params,
    ls_gated_rms_norm_params,
    ls_group_rms_norm_params,
    ls_rms_sum_sq_params,
)
from .context import CallOptions, checked, run
from .rows import Rows, Snapshots, snapshot_struct
from .tensors import Tensor, TensorLike, given, indices, output, result, tensor

ACTIVATIONS = {"none": c.LS_ACTIVATION_NONE, "silu": c.LS_ACTIVATION_SILU}


class ConvOptions(CallOptions, total=False):
    """Keyword options that every convolution takes, besides those of `CallOptions`.

    bias [channels]. activation: "silu" (the default) or "none". out: where to write, shape of x;
    None = a new tensor of x's dtype; must not overlap x. layer: only for error reports.
    """

    bias: TensorLike | None
    activation: str
    out: TensorLike | None
    layer: int


class ConvCall(ConvOptions):
    """What every convolution takes, by name.

    x [T, channels] f32, bf16 or f16; weight [channels, W], W = 2 to 4; window [P, channels, W - 1]
    of x's dtype or f32, oldest input first; rows: which tokens are whose.
    """

    x: TensorLike
    weight: TensorLike
    window: TensorLike
    rows: Rows


class ConvSnapshotCall(ConvCall, total=False):
    """`ConvCall`, and windows to keep on the way."""

    snapshots: Snapshots | None


def _conv_params(shape: type, call_of: Any) -> tuple[ls_causal_conv1d_params, Tensor]:
    x: ConvSnapshotCall = checked(shape, call_of)
    inputs = tensor(x["x"], "x")
    out = result(x.get("out"), inputs.shape, inputs)
    params = fill(
        ls_causal_conv1d_params,
        rows=x["rows"].struct(),
        snapshots=snapshot_struct(x.get("snapshots")),
        x=inputs,
        weight=tensor(x["weight"], "weight"),
        bias=given(x.get("bias"), "bias"),
        window=output(x["window"], "window"),
        out=out,
        activation=choice("activation", x.get("activation", "silu"), ACTIVATIONS),
        layer=x.get("layer", 0),
    )
    return params, out


def causal_conv1d_prefill(**call: Unpack[ConvSnapshotCall]) -> Tensor:
    """y[t] = act(bias + sum_j weight[:, j] * x[t - W + 1 + j]), any number of tokens a row.

    Arguments: `ConvCall`, `ConvOptions`; the window moves in place. Returns out of x's shape.
    Errors: InvalidArgumentError, UnsupportedError.
    """
    params, out = _conv_params(ConvSnapshotCall, call)
    run("causal_conv1d_prefill", params, call)
    return out


def causal_conv1d_update(**call: Unpack[ConvSnapshotCall]) -> Tensor:
    """One token a row: token n is row n. Otherwise as `causal_conv1d_prefill`, bit for bit."""
    params, out = _conv_params(ConvSnapshotCall, call)
    run("causal_conv1d_update", params, call)
    return out


def causal_conv1d_verify(*, parent: TensorLike | None = None, **call: Unpack[ConvCall]) -> Tensor:
    """Draft tokens: a node's history is its path behind the window, which is only read.

    parent: as `kda_verify`. Other arguments, errors: as `causal_conv1d_prefill`.
    """
    conv, out = _conv_params(ConvCall, call)
    view = None if parent is None else indices(parent, "parent")
    params = fill(ls_causal_conv1d_verify_params, conv=conv, parent=view)
    run("causal_conv1d_verify", params, call)
    return out


def gated_rms_norm(
    x: TensorLike,
    z: TensorLike,
    weight: TensorLike,
    *,
    eps: float = 1e-5,
    out: TensorLike | None = None,
    **options: Unpack[CallOptions],
) -> Tensor:
    """Per head: x * rsqrt(mean(x^2) + eps) * weight * sigmoid(z).

    x, z [T, HV, V], weight [V]: f32, bf16 or f16 each. out: may be x itself; None = a new tensor of
    x's dtype. Errors: InvalidArgumentError.
    """
    inputs = tensor(x, "x")
    written = result(out, inputs.shape, inputs)
    params = fill(
        ls_gated_rms_norm_params,
        x=inputs,
        z=tensor(z, "z"),
        weight=tensor(weight, "weight"),
        out=written,
        eps=eps,
    )
    run("gated_rms_norm", params, options)
    return written


def group_rms_norm(
    x: TensorLike,
    weight: TensorLike,
    *,
    gate: TensorLike | None = None,
    sum_sq: TensorLike | None = None,
    num_groups: int = 1,
    group_channels: int = 0,
    eps: float = 1e-5,
    out: TensorLike | None = None,
    **options: Unpack[CallOptions],
) -> Tensor:
    """x * rsqrt(mean of x^2 over the group, + eps) * weight, then * sigmoid(gate) where given.

    x, gate [T, C], weight [C]: f32, bf16 or f16 each; C channels in num_groups equal groups. A
    group that spans ranks: sum_sq [T, num_groups] f32 holds its total over the ranks (`rms_sum_sq`,
    added up), group_channels its channels there. out: may be x; None = a new tensor of x's dtype.
    Errors: InvalidArgumentError.
    """
    inputs = tensor(x, "x")
    written = result(out, inputs.shape, inputs)
    params = fill(
        ls_group_rms_norm_params,
        x=inputs,
        gate=given(gate, "gate"),
        weight=tensor(weight, "weight"),
        sum_sq=given(sum_sq, "sum_sq"),
        out=written,
        num_groups=num_groups,
        group_channels=group_channels,
        eps=eps,
    )
    run("group_rms_norm", params, options)
    return written


def rms_sum_sq(
    x: TensorLike,
    *,
    num_groups: int = 1,
    out: TensorLike | None = None,
    **options: Unpack[CallOptions],
) -> Tensor:
    """sum_sq [T, num_groups] f32: this rank's sums of squares of x [T, C], group by group."""
    inputs = tensor(x, "x")
    written = result(out, (inputs.shape[0], num_groups), inputs, "f32")
    run("rms_sum_sq", fill(ls_rms_sum_sq_params, x=inputs, sum_sq=written), options)
    return written
