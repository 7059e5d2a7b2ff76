"""What surrounds the attention of a layer: the short convolution, and the norms."""

from __future__ import annotations

from typing import TypedDict, Unpack

from ._abi import _constants as c
from ._abi._params import choice, fill
from ._abi._structs import (
    ls_causal_conv1d_params,
    ls_causal_conv1d_verify_params,
    ls_gated_rms_norm_params,
    ls_group_rms_norm_params,
    ls_rms_sum_sq_params,
)
from .context import Context, run
from .rows import Rows, Snapshots, snapshot_struct
from .tensors import Tensor, TensorLike, empty, given, indices, output, tensor

ACTIVATIONS = {"none": c.LS_ACTIVATION_NONE, "silu": c.LS_ACTIVATION_SILU}


class ConvOptions(TypedDict, total=False):
    """Keyword options of the convolutions.

    bias [channels]. activation: "silu" (the default) or "none". out: where to write, shape of x;
    None = a new tensor of x's dtype; must not overlap x.
    layer: only for error reports. context: None = the thread's own. kernel: None = the best.
    """

    bias: TensorLike | None
    activation: str
    out: TensorLike | None
    layer: int
    context: Context | None
    kernel: str | None


def _conv_params(
    x: TensorLike,
    weight: TensorLike,
    window: TensorLike,
    rows: Rows,
    snapshots: Snapshots | None,
    options: ConvOptions,
) -> tuple[ls_causal_conv1d_params, Tensor]:
    inputs = tensor(x, "x")
    out = options.get("out")
    result = empty(inputs.shape, inputs.dtype) if out is None else output(out, "out")
    params = fill(
        ls_causal_conv1d_params,
        rows=rows.struct(),
        snapshots=snapshot_struct(snapshots),
        x=inputs,
        weight=tensor(weight, "weight"),
        bias=given(options.get("bias"), "bias"),
        window=output(window, "window"),
        out=result,
        activation=choice("activation", options.get("activation", "silu"), ACTIVATIONS),
        layer=options.get("layer", 0),
    )
    return params, result


def causal_conv1d_prefill(
    x: TensorLike,
    weight: TensorLike,
    window: TensorLike,
    rows: Rows,
    *,
    snapshots: Snapshots | None = None,
    **options: Unpack[ConvOptions],
) -> Tensor:
    """y[t] = act(bias + sum_j weight[:, j] * x[t - W + 1 + j]), any number of tokens a row.

    x [T, channels] f32, bf16 or f16; weight [channels, W], W = 2 to 4; window [P, channels, W - 1]
    of x's dtype or f32, oldest input first, in place. Returns out of x's shape. Options:
    `ConvOptions`. Errors: InvalidArgumentError, UnsupportedError.
    """
    params, out = _conv_params(x, weight, window, rows, snapshots, options)
    run("causal_conv1d_prefill", params, options.get("context"), options.get("kernel"))
    return out


def causal_conv1d_update(
    x: TensorLike,
    weight: TensorLike,
    window: TensorLike,
    rows: Rows,
    *,
    snapshots: Snapshots | None = None,
    **options: Unpack[ConvOptions],
) -> Tensor:
    """One token a row: token n is row n. Otherwise as `causal_conv1d_prefill`, bit for bit."""
    params, out = _conv_params(x, weight, window, rows, snapshots, options)
    run("causal_conv1d_update", params, options.get("context"), options.get("kernel"))
    return out


def causal_conv1d_verify(
    x: TensorLike,
    weight: TensorLike,
    window: TensorLike,
    rows: Rows,
    *,
    parent: TensorLike | None = None,
    **options: Unpack[ConvOptions],
) -> Tensor:
    """Draft tokens: a node's history is its path behind the window, which is only read.

    parent: as `kda_verify`. Otherwise as `causal_conv1d_prefill`.
    """
    conv, out = _conv_params(x, weight, window, rows, None, options)
    view = None if parent is None else indices(parent, "parent")
    params = fill(ls_causal_conv1d_verify_params, conv=conv, parent=view)
    run("causal_conv1d_verify", params, options.get("context"), options.get("kernel"))
    return out


def gated_rms_norm(
    x: TensorLike,
    z: TensorLike,
    weight: TensorLike,
    *,
    eps: float = 1e-5,
    out: TensorLike | None = None,
    context: Context | None = None,
    kernel: str | None = None,
) -> Tensor:
    """Per head: x * rsqrt(mean(x^2) + eps) * weight * sigmoid(z).

    x, z [T, HV, V], weight [V]: f32, bf16 or f16 each. out: may be x itself; None = a new tensor of
    x's dtype. Errors: InvalidArgumentError.
    """
    inputs = tensor(x, "x")
    result = empty(inputs.shape, inputs.dtype) if out is None else output(out, "out")
    params = fill(
        ls_gated_rms_norm_params,
        x=inputs,
        z=tensor(z, "z"),
        weight=tensor(weight, "weight"),
        out=result,
        eps=eps,
    )
    run("gated_rms_norm", params, context, kernel)
    return result


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
    context: Context | None = None,
    kernel: str | None = None,
) -> Tensor:
    """x * rsqrt(mean of x^2 over the group, + eps) * weight, then * sigmoid(gate) where given.

    x, gate [T, C], weight [C]: f32, bf16 or f16 each; C channels in num_groups equal groups. A
    group that spans ranks: sum_sq [T, num_groups] f32 holds its total over the ranks (`rms_sum_sq`,
    added up), group_channels its channels there. out: may be x; None = a new tensor of x's dtype.
    Errors: InvalidArgumentError.
    """
    inputs = tensor(x, "x")
    result = empty(inputs.shape, inputs.dtype) if out is None else output(out, "out")
    params = fill(
        ls_group_rms_norm_params,
        x=inputs,
        gate=given(gate, "gate"),
        weight=tensor(weight, "weight"),
        sum_sq=given(sum_sq, "sum_sq"),
        out=result,
        num_groups=num_groups,
        group_channels=group_channels,
        eps=eps,
    )
    run("group_rms_norm", params, context, kernel)
    return result


def rms_sum_sq(
    x: TensorLike,
    *,
    num_groups: int = 1,
    out: TensorLike | None = None,
    context: Context | None = None,
    kernel: str | None = None,
) -> Tensor:
    """sum_sq [T, num_groups] f32: this rank's sums of squares of x [T, C], group by group."""
    inputs = tensor(x, "x")
    result = empty((inputs.shape[0], num_groups), "f32") if out is None else output(out, "out")
    run("rms_sum_sq", fill(ls_rms_sum_sq_params, x=inputs, sum_sq=result), context, kernel)
    return result
