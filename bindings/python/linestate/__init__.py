"""Linear-attention layers of an LLM engine: Kimi Delta Attention and Lightning Attention.

Arrays are numpy arrays or anything that exports DLPack; nothing is copied. docs/python.md is the
guide, `help(linestate.kda_prefill)` and its neighbours the reference.
"""

from . import errors
from .backends import (
    KdaBackend,
    KdaWeights,
    KernelOptions,
    LightningBackend,
    LightningWeights,
    VerifyRecords,
)
from .batch import BatchCounts, ForwardMetadata, Row, Segment, SnapshotRequest
from .context import Context, DeviceStatus, explain
from .errors import LinestateError
from .info import (
    Device,
    Kernel,
    KernelUse,
    build_description,
    devices,
    kernel_uses,
    kernels,
    numerics_version,
    presets,
    reset_kernel_uses,
    set_log,
    version,
)
from .kda_ops import (
    KdaOptions,
    KdaRecord,
    kda_commit,
    kda_decode,
    kda_prefill,
    kda_verify,
    split_packed_qkv,
)
from .layer_ops import (
    ConvOptions,
    causal_conv1d_prefill,
    causal_conv1d_update,
    causal_conv1d_verify,
    gated_rms_norm,
    group_rms_norm,
    rms_sum_sq,
)
from .lightning_ops import (
    LightningOptions,
    LightningRecord,
    lightning_commit,
    lightning_decode,
    lightning_prefill,
    lightning_slopes,
    lightning_verify,
)
from .model import LayerSpec, Model
from .pool import Pool, PoolSpec
from .prefix_cache import Lease, PrefixCache, PrefixCacheStats
from .rows import CHUNK_TOKENS, PAD_SLOT, Rows, Snapshots
from .slot_ops import (
    FoldLayer,
    ReplayRing,
    kda_decode_replay,
    lightning_decode_replay,
    replay_fold,
    replay_step_begin,
    state_clear,
    state_copy,
    tree_from_links,
)
from .tensors import Tensor, TensorLike, bf16, empty, tensor, to_bf16

__version__ = version()
__all__ = [
    "BatchCounts",
    "CHUNK_TOKENS",
    "Context",
    "ConvOptions",
    "Device",
    "DeviceStatus",
    "FoldLayer",
    "ForwardMetadata",
    "KdaBackend",
    "KdaOptions",
    "KdaRecord",
    "KdaWeights",
    "Kernel",
    "KernelOptions",
    "KernelUse",
    "LayerSpec",
    "Lease",
    "LightningBackend",
    "LightningOptions",
    "LightningRecord",
    "LightningWeights",
    "LinestateError",
    "Model",
    "PAD_SLOT",
    "Pool",
    "PoolSpec",
    "PrefixCache",
    "PrefixCacheStats",
    "ReplayRing",
    "Row",
    "Rows",
    "Segment",
    "SnapshotRequest",
    "Snapshots",
    "Tensor",
    "TensorLike",
    "VerifyRecords",
    "bf16",
    "build_description",
    "causal_conv1d_prefill",
    "causal_conv1d_update",
    "causal_conv1d_verify",
    "devices",
    "empty",
    "errors",
    "explain",
    "gated_rms_norm",
    "group_rms_norm",
    "kda_commit",
    "kda_decode",
    "kda_decode_replay",
    "kda_prefill",
    "kda_verify",
    "kernel_uses",
    "kernels",
    "lightning_commit",
    "lightning_decode",
    "lightning_decode_replay",
    "lightning_prefill",
    "lightning_slopes",
    "lightning_verify",
    "numerics_version",
    "presets",
    "replay_fold",
    "replay_step_begin",
    "reset_kernel_uses",
    "rms_sum_sq",
    "set_log",
    "split_packed_qkv",
    "state_clear",
    "state_copy",
    "tensor",
    "to_bf16",
    "tree_from_links",
    "version",
]
