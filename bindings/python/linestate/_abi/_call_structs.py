"""Structs of the C interface: arguments of calls.

Written by tools/gen_ctypes.py from linestate/c_api.h."""

from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p

from ._data_structs import ls_tensor


class ls_rows(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("slot", ls_tensor),
        ("query_start_loc", ls_tensor),
        ("start", ls_tensor),
        ("num_valid", ls_tensor),
    ]


class ls_snapshot_plan(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("row", ls_tensor),
        ("position", ls_tensor),
        ("slot", ls_tensor),
    ]


class ls_kda_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(ls_rows)),
        ("snapshots", POINTER(ls_snapshot_plan)),
        ("q", ls_tensor),
        ("k", ls_tensor),
        ("v", ls_tensor),
        ("gate", ls_tensor),
        ("beta", ls_tensor),
        ("A_log", ls_tensor),
        ("dt_bias", ls_tensor),
        ("state", ls_tensor),
        ("out", ls_tensor),
        ("gate_form", c_int32),
        ("beta_form", c_int32),
        ("lower_bound", c_float),
        ("scale", c_float),
        ("qk_normalized", c_int32),
        ("layer", c_int32),
    ]


class ls_kda_record(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("u", ls_tensor),
        ("k", ls_tensor),
        ("k_inverse_norm", ls_tensor),
        ("alpha", ls_tensor),
    ]


class ls_kda_verify_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kda", POINTER(ls_kda_params)),
        ("record", POINTER(ls_kda_record)),
        ("parent", ls_tensor),
    ]


class ls_kda_commit_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(ls_rows)),
        ("record", POINTER(ls_kda_record)),
        ("snapshots", POINTER(ls_snapshot_plan)),
        ("parent", ls_tensor),
        ("accepted_node", ls_tensor),
        ("conv_x", ls_tensor),
        ("state", ls_tensor),
        ("window", ls_tensor),
        ("taken", ls_tensor),
        ("layer", c_int32),
        ("reserved", c_int32),
    ]


class ls_lightning_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(ls_rows)),
        ("snapshots", POINTER(ls_snapshot_plan)),
        ("q", ls_tensor),
        ("k", ls_tensor),
        ("v", ls_tensor),
        ("slopes", ls_tensor),
        ("state", ls_tensor),
        ("out", ls_tensor),
        ("scale", c_float),
        ("layer", c_int32),
    ]


class ls_lightning_record(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("k", ls_tensor),
        ("v", ls_tensor),
    ]


class ls_lightning_verify_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lightning", POINTER(ls_lightning_params)),
        ("record", POINTER(ls_lightning_record)),
        ("parent", ls_tensor),
    ]


class ls_lightning_commit_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(ls_rows)),
        ("record", POINTER(ls_lightning_record)),
        ("snapshots", POINTER(ls_snapshot_plan)),
        ("parent", ls_tensor),
        ("accepted_node", ls_tensor),
        ("slopes", ls_tensor),
        ("state", ls_tensor),
        ("taken", ls_tensor),
        ("layer", c_int32),
        ("reserved", c_int32),
    ]


class ls_kernel_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("base", c_char_p),
        ("conv", c_char_p),
        ("prefill", c_char_p),
        ("decode", c_char_p),
        ("verify", c_char_p),
        ("norm", c_char_p),
    ]


class ls_kda_weights(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("conv_weight", ls_tensor),
        ("conv_bias", ls_tensor),
        ("A_log", ls_tensor),
        ("dt_bias", ls_tensor),
        ("norm_weight", ls_tensor),
    ]


class ls_kda_io(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("record", POINTER(ls_kda_record)),
        ("record_x", ls_tensor),
        ("qkv", ls_tensor),
        ("gate", ls_tensor),
        ("beta", ls_tensor),
        ("z", ls_tensor),
        ("out", ls_tensor),
    ]


class ls_kda_commit_io(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("record", POINTER(ls_kda_record)),
        ("record_x", ls_tensor),
        ("accepted_node", ls_tensor),
    ]


class ls_lightning_weights(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("slopes", ls_tensor),
        ("norm_weight", ls_tensor),
    ]


class ls_lightning_io(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("record", POINTER(ls_lightning_record)),
        ("q", ls_tensor),
        ("k", ls_tensor),
        ("v", ls_tensor),
        ("gate", ls_tensor),
        ("out", ls_tensor),
    ]


class ls_lightning_commit_io(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("record", POINTER(ls_lightning_record)),
        ("accepted_node", ls_tensor),
    ]


class ls_prefix_cache_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("block_tokens", c_int64),
        ("byte_budget", c_int64),
        ("bytes_per_snapshot", c_int64),
    ]


class ls_prefix_cache_stats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lookups", c_int64),
        ("hits", c_int64),
        ("hit_tokens", c_int64),
        ("inserted", c_int64),
        ("duplicates", c_int64),
        ("rejected", c_int64),
        ("evicted", c_int64),
        ("entries", c_int64),
        ("leased", c_int64),
        ("bytes", c_int64),
    ]


class ls_unpack_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allow_state_dtype_change", c_int32),
        ("allow_other_numerics", c_int32),
    ]


class ls_slot_staging(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("stream", c_void_p),
        ("buffer", c_void_p),
        ("size", c_size_t),
    ]


class ls_place(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_index", c_int32),
    ]


class ls_causal_conv1d_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(ls_rows)),
        ("snapshots", POINTER(ls_snapshot_plan)),
        ("x", ls_tensor),
        ("weight", ls_tensor),
        ("bias", ls_tensor),
        ("window", ls_tensor),
        ("out", ls_tensor),
        ("activation", c_int32),
        ("layer", c_int32),
    ]


class ls_causal_conv1d_verify_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("conv", POINTER(ls_causal_conv1d_params)),
        ("parent", ls_tensor),
    ]


class ls_gated_rms_norm_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", ls_tensor),
        ("z", ls_tensor),
        ("weight", ls_tensor),
        ("out", ls_tensor),
        ("eps", c_float),
        ("reserved", c_int32),
    ]


class ls_group_rms_norm_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", ls_tensor),
        ("gate", ls_tensor),
        ("weight", ls_tensor),
        ("sum_sq", ls_tensor),
        ("out", ls_tensor),
        ("num_groups", c_int64),
        ("group_channels", c_int64),
        ("eps", c_float),
        ("reserved", c_int32),
    ]


class ls_rms_sum_sq_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", ls_tensor),
        ("sum_sq", ls_tensor),
    ]


class ls_tree_from_links_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("first_child", ls_tensor),
        ("next_sibling", ls_tensor),
        ("parent", ls_tensor),
    ]


class ls_state_clear_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("planes", POINTER(ls_tensor)),
        ("num_planes", c_size_t),
        ("slots", ls_tensor),
    ]


class ls_state_copy_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("src", POINTER(ls_tensor)),
        ("num_src", c_size_t),
        ("dst", POINTER(ls_tensor)),
        ("num_dst", c_size_t),
        ("src_slots", ls_tensor),
        ("dst_slots", ls_tensor),
    ]


class ls_replay_ring(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("keys", ls_tensor),
        ("values", ls_tensor),
        ("gamma", ls_tensor),
    ]


class ls_replay_step_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(ls_rows)),
        ("force_flush", ls_tensor),
        ("cursor", ls_tensor),
        ("pending", ls_tensor),
        ("flush", ls_tensor),
        ("ring_length", c_int64),
    ]


class ls_kda_replay_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kda", POINTER(ls_kda_params)),
        ("ring", POINTER(ls_replay_ring)),
        ("pending", ls_tensor),
        ("flush", ls_tensor),
    ]


class ls_lightning_replay_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lightning", POINTER(ls_lightning_params)),
        ("ring", POINTER(ls_replay_ring)),
        ("pending", ls_tensor),
        ("flush", ls_tensor),
    ]


class ls_replay_fold_layer(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ring", POINTER(ls_replay_ring)),
        ("state", ls_tensor),
        ("slopes", ls_tensor),
        ("layer", c_int32),
        ("reserved", c_int32),
    ]


class ls_replay_fold_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layers", POINTER(ls_replay_fold_layer)),
        ("num_layers", c_size_t),
        ("slots", ls_tensor),
        ("cursor", ls_tensor),
    ]


class ls_kernel(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("device_type", c_int32),
        ("reserved", c_int32),
        ("refuse", c_void_p),
        ("workspace_bytes", c_void_p),
        ("run", c_void_p),
        ("user", c_void_p),
    ]


class ls_transfer_descriptor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layer_id", c_int32),
        ("part", c_int32),
        ("dtype", c_int32),
        ("layout", c_int32),
        ("order", c_int32),
        ("reserved", c_int32),
        ("base", c_void_p),
        ("num_slots", c_int64),
        ("slot_stride_bytes", c_int64),
        ("bytes_per_slot", c_int64),
        ("heads", c_int64),
        ("head_stride_bytes", c_int64),
        ("bytes_per_head", c_int64),
        ("runs_per_head", c_int64),
        ("run_bytes", c_int64),
        ("run_stride_bytes", c_int64),
    ]


class ls_slot_pack_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("position", c_int64),
        ("total_bytes", c_int64),
        ("scheme", c_int32),
        ("numerics_version", c_int32),
        ("state_dtype", c_int32),
        ("window_dtype", c_int32),
    ]
