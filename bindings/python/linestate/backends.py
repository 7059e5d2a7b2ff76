"""The forward pass of one attention layer over a prepared batch."""

from __future__ import annotations

from ctypes import byref, c_int64
from dataclasses import dataclass
from typing import Any

from ._abi._library import Handle, call, create, encoded, text_of
from ._abi._params import fill
from ._abi._structs import (
    ls_kda_commit_io,
    ls_kda_io,
    ls_kda_record,
    ls_kda_weights,
    ls_kernel_options,
    ls_lightning_commit_io,
    ls_lightning_io,
    ls_lightning_record,
    ls_lightning_weights,
    ls_tensor,
)
from .batch import ForwardMetadata
from .context import Context, collected, context_or_default
from .device import DeviceLike, device_codes
from .dtypes import code_of
from .kda_ops import KdaRecord
from .lightning_ops import LightningRecord
from .model import Model
from .pool import Pool
from .tensors import Tensor, TensorLike, given, indices, output, result, tensor


@dataclass(frozen=True)
class KernelOptions:
    """Kernel names per phase; None = the base's, and without one the library's choice."""

    base: str | None = None
    conv: str | None = None
    prefill: str | None = None
    decode: str | None = None
    verify: str | None = None
    norm: str | None = None

    def struct(self) -> ls_kernel_options:
        """As the C interface takes it."""
        return fill(ls_kernel_options, **{name: encoded(one) for name, one in vars(self).items()})


@dataclass
class KdaWeights:
    """Weights of one KDA layer, this rank's heads.

    conv_weight [2*H*K + HV*V, W], conv_bias [2*H*K + HV*V]; A_log [HV] f32 and dt_bias [HV, K] f32,
    None for an activated gate; norm_weight [V], None = no norm after attention.
    """

    conv_weight: TensorLike
    A_log: TensorLike | None = None
    dt_bias: TensorLike | None = None
    conv_bias: TensorLike | None = None
    norm_weight: TensorLike | None = None

    def struct(self) -> ls_kda_weights:
        """As the C interface takes it."""
        return fill(ls_kda_weights, **{name: given(one, name) for name, one in vars(self).items()})


@dataclass
class LightningWeights:
    """Weights of one Lightning layer: slopes [H] f32; norm_weight [H*D], None = no norm."""

    slopes: TensorLike
    norm_weight: TensorLike | None = None

    def struct(self) -> ls_lightning_weights:
        """As the C interface takes it."""
        members = {name: given(one, name) for name, one in vars(self).items()}
        return fill(ls_lightning_weights, **members)


class VerifyRecords(Handle):
    """Memory for what verification remembers, for every layer; one batch in flight at a time."""

    _destroy = "records_destroy"

    def __init__(
        self,
        model: Model,
        max_tokens: int,
        *,
        dtype: Any = "bf16",
        device: DeviceLike = "cpu",
    ) -> None:
        where = device_codes(device)
        code = code_of(dtype)
        super().__init__(create("records_create", model.pointer, code, max_tokens, *where))

    @staticmethod
    def bytes_per_token(model: Model, dtype: Any = "bf16") -> int:
        """Bytes that one draft token takes over all layers."""
        size = c_int64()
        call("records_bytes_per_token", model.pointer, code_of(dtype), byref(size))
        return size.value

    def kda(self, layer: int) -> tuple[KdaRecord, Tensor]:
        """Record and convolution inputs [max_tokens, channels] of a KDA layer of the pool.

        Errors: InvalidArgumentError (no such layer, or of the other kind).
        """
        record, x = fill(ls_kda_record), ls_tensor()
        call("records_kda", self.pointer, layer, byref(record), byref(x))
        names = ("u", "k", "k_inverse_norm", "alpha")
        views = [Tensor(getattr(record, name), (self, record)) for name in names]
        return KdaRecord(*views), Tensor(x, self)

    def lightning(self, layer: int) -> LightningRecord:
        """Record of a Lightning layer of the pool. Errors: as `kda`."""
        record = fill(ls_lightning_record)
        call("records_lightning", self.pointer, layer, byref(record))
        owner = (self, record)
        return LightningRecord(Tensor(record.k, owner), Tensor(record.v, owner))


class _Backend(Handle):
    _kind: str

    def __init__(self, model: Model, kernels: KernelOptions | None = None) -> None:
        options = (kernels or KernelOptions()).struct()
        super().__init__(create(f"{self._kind}_backend_create", model.pointer, byref(options)))

    def workspace_bytes(
        self,
        max_tokens: int,
        pool: Pool,
        *,
        context: Context | None = None,
        kernel: str | None = None,
    ) -> int:
        """Scratch of any `forward` over up to max_tokens tokens of capacity."""
        size = c_int64()
        where = context_or_default(context)
        arguments = (self.pointer, max_tokens, pool.pointer, byref(where.struct), encoded(kernel))
        call(f"{self._kind}_backend_workspace_bytes", *arguments, byref(size))
        return size.value

    def _forward(
        self,
        layer: int,
        weights: Any,
        metadata: ForwardMetadata,
        pool: Pool,
        io: Any,
        context: Context | None,
        kernel: str | None,
    ) -> None:
        where = context_or_default(context)
        tokens = max(metadata.counts.token_capacity, 1)
        where.reserve(self.workspace_bytes(tokens, pool, context=where, kernel=kernel))
        arguments = (
            self.pointer,
            layer,
            byref(weights),
            metadata.pointer,
            pool.pointer,
            byref(io),
            byref(where.struct),
            encoded(kernel),
        )
        name = f"{self._kind}_backend"
        if not collected(lambda: text_of(f"{name}_explain", *arguments)):
            call(f"{name}_forward", *arguments)


class KdaBackend(_Backend):
    """conv, gate, delta rule and norm of a model's KDA layers. Read-only once made.

    Errors of the constructor: InvalidArgumentError when the model has no KDA layer.
    """

    _kind, _destroy = "kda", "kda_backend_destroy"

    def forward(
        self,
        layer: int,
        weights: KdaWeights,
        metadata: ForwardMetadata,
        pool: Pool,
        *,
        qkv: TensorLike,
        gate: TensorLike,
        beta: TensorLike,
        z: TensorLike | None = None,
        out: TensorLike | None = None,
        record: KdaRecord | None = None,
        record_x: TensorLike | None = None,
        context: Context | None = None,
        kernel: str | None = None,
    ) -> Tensor:
        """All rows of the batch through pool layer `layer`; state and window advance in place.

        T = token capacity. qkv [T, 2*H*K + HV*V] before the convolution; gate [T, HV, K]; beta
        [T, HV]; z [T, HV, V], given exactly when norm_weight is. record and record_x: batches with
        verify rows only, of `VerifyRecords.kda`. Returns out [T, HV, V]: the one given, or a new
        one of qkv's dtype. Errors: InvalidArgumentError naming the tensor, UnsupportedError.
        """
        packed, gates = tensor(qkv, "qkv"), tensor(gate, "gate")
        shape = (packed.shape[0], gates.shape[1], pool.recurrent(layer).shape[2])
        written = result(out, shape, packed)
        io = fill(
            ls_kda_io,
            record=None if record is None else record.struct(),
            record_x=None if record_x is None else output(record_x, "record_x"),
            qkv=packed,
            gate=gates,
            beta=tensor(beta, "beta"),
            z=given(z, "z"),
            out=written,
        )
        self._forward(layer, weights.struct(), metadata, pool, io, context, kernel)
        return written

    def commit(
        self,
        layer: int,
        metadata: ForwardMetadata,
        pool: Pool,
        *,
        record: KdaRecord,
        record_x: TensorLike,
        accepted_node: TensorLike,
        context: Context | None = None,
        kernel: str | None = None,
    ) -> None:
        """State and window of the layer take the accepted path of every verify row.

        accepted_node [verify rows]: -1 = none, c accepted tokens of a chain are c - 1. The metadata
        still holds the verified batch. Errors: InvalidArgumentError.
        """
        io = fill(
            ls_kda_commit_io,
            record=record.struct(),
            record_x=tensor(record_x, "record_x"),
            accepted_node=indices(accepted_node, "accepted_node"),
        )
        where = context_or_default(context)
        arguments = (self.pointer, layer, metadata.pointer, pool.pointer, byref(io))
        call("kda_backend_commit", *arguments, byref(where.struct), encoded(kernel))


class LightningBackend(_Backend):
    """Linear attention and norm of a model's Lightning layers. Read-only once made.

    Errors of the constructor: InvalidArgumentError when the model has no Lightning layer.
    """

    _kind, _destroy = "lightning", "lightning_backend_destroy"

    def forward(
        self,
        layer: int,
        weights: LightningWeights,
        metadata: ForwardMetadata,
        pool: Pool,
        *,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        gate: TensorLike | None = None,
        out: TensorLike | None = None,
        record: LightningRecord | None = None,
        context: Context | None = None,
        kernel: str | None = None,
    ) -> Tensor:
        """All rows of the batch through pool layer `layer`; the state advances in place.

        q, k, v [T, H, D], T = token capacity; gate [T, H, D]: logits for the norm's sigmoid.
        record: batches with verify rows only. Returns out [T, H, D]: the one given, or a new one of
        q's dtype. Errors: InvalidArgumentError naming the tensor, UnsupportedError.
        """
        query = tensor(q, "q")
        written = result(out, query.shape, query)
        io = fill(
            ls_lightning_io,
            record=None if record is None else record.struct(),
            q=query,
            k=tensor(k, "k"),
            v=tensor(v, "v"),
            gate=given(gate, "gate"),
            out=written,
        )
        self._forward(layer, weights.struct(), metadata, pool, io, context, kernel)
        return written

    def commit(
        self,
        layer: int,
        weights: LightningWeights,
        metadata: ForwardMetadata,
        pool: Pool,
        *,
        record: LightningRecord,
        accepted_node: TensorLike,
        context: Context | None = None,
        kernel: str | None = None,
    ) -> None:
        """The state of the layer takes the accepted path of every verify row. As KdaBackend."""
        io = fill(
            ls_lightning_commit_io,
            record=record.struct(),
            accepted_node=indices(accepted_node, "accepted_node"),
        )
        where = context_or_default(context)
        parts = weights.struct()
        arguments = (self.pointer, layer, byref(parts), metadata.pointer, pool.pointer, byref(io))
        call("lightning_backend_commit", *arguments, byref(where.struct), encoded(kernel))
