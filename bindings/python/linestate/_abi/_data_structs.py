"""Structs of the C interface: tensors, rows, models, pools and batches.

Written by tools/gen_ctypes.py from linestate/c_api.h."""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)

ls_event_done = CFUNCTYPE(c_bool, c_void_p)
ls_log_callback = CFUNCTYPE(None, c_char_p, c_void_p)


class ls_tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * 5),
        ("stride", c_int64 * 5),
    ]


class ls_device_status(Structure):
    _fields_ = [
        ("words", c_uint32 * 16),
    ]


class ls_context(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("num_threads", c_int32),
        ("check_finite", c_int32),
        ("strict", c_int32),
        ("slots_checked", c_int32),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("status", POINTER(ls_device_status)),
    ]


class ls_layer_spec(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("layer_id", c_int32),
        ("num_heads", c_int64),
        ("num_value_heads", c_int64),
        ("k_dim", c_int64),
        ("v_dim", c_int64),
        ("conv_width", c_int64),
        ("conv_activation", c_int32),
        ("gate_form", c_int32),
        ("beta_form", c_int32),
        ("lower_bound", c_float),
        ("variant", c_int32),
        ("slope_rule", c_int32),
        ("norm_groups", c_int64),
        ("norm_group_channels", c_int64),
        ("norm_eps", c_float),
        ("reserved", c_int32),
    ]


class ls_layer_state(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layer_id", c_int32),
        ("layout", c_int32),
        ("heads", c_int64),
        ("k_dim", c_int64),
        ("v_dim", c_int64),
        ("conv_channels", c_int64),
        ("conv_tail", c_int64),
    ]


class ls_pool_spec(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_void_p),
        ("layers", POINTER(ls_layer_state)),
        ("num_layers", c_size_t),
        ("state_dtype", c_int32),
        ("window_dtype", c_int32),
        ("replay_length", c_int64),
        ("replay_dtype", c_int32),
        ("reserved", c_int32),
        ("replay_slopes", POINTER(POINTER(c_float))),
    ]


class ls_adopted_layer(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("recurrent", ls_tensor),
        ("conv_window", ls_tensor),
    ]


class ls_row(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("slot", c_int32),
        ("kind", c_int32),
        ("start", c_int64),
        ("tokens", c_int32),
        ("num_valid", c_int32),
        ("force_flush", c_int32),
        ("reserved", c_int32),
    ]


class ls_snapshot_request(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("position", c_int64),
        ("row", c_int32),
        ("slot", c_int32),
    ]


class ls_slot_restore(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pack", c_void_p),
        ("pack_size", c_size_t),
        ("slot", c_int32),
        ("allow_state_dtype_change", c_int32),
        ("allow_other_numerics", c_int32),
        ("reserved", c_int32),
    ]


class ls_batch_shape(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("extend_rows", c_int64),
        ("extend_tokens", c_int64),
        ("extend_snapshots", c_int64),
        ("decode_rows", c_int64),
        ("decode_snapshots", c_int64),
        ("verify_rows", c_int64),
        ("verify_tokens", c_int64),
        ("verify_snapshots", c_int64),
    ]


class ls_forward_batch(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(ls_row)),
        ("num_rows", c_size_t),
        ("token_capacity", c_int64),
        ("clear", POINTER(c_int32)),
        ("num_clears", c_size_t),
        ("copy_src", POINTER(c_int32)),
        ("copy_dst", POINTER(c_int32)),
        ("num_copies", c_size_t),
        ("parent", POINTER(c_int32)),
        ("num_parents", c_size_t),
        ("snapshots", POINTER(ls_snapshot_request)),
        ("num_snapshots", c_size_t),
        ("slot_table", ls_tensor),
        ("restores", POINTER(ls_slot_restore)),
        ("num_restores", c_size_t),
        ("shape", POINTER(ls_batch_shape)),
    ]


class ls_forward_capacity(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_int64),
        ("verify_tokens", c_int64),
        ("snapshots", c_int64),
        ("slot_work", c_int64),
    ]


class ls_batch_counts(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_rows", c_int64),
        ("num_tokens", c_int64),
        ("token_capacity", c_int64),
        ("num_prefills", c_int64),
        ("num_decodes", c_int64),
        ("num_prefill_tokens", c_int64),
    ]


class ls_segment(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("row_begin", c_int64),
        ("row_end", c_int64),
        ("token_begin", c_int64),
        ("token_end", c_int64),
        ("slot", ls_tensor),
        ("query_start_loc", ls_tensor),
        ("start", ls_tensor),
        ("num_valid", ls_tensor),
        ("parent", ls_tensor),
        ("taken", ls_tensor),
        ("snapshot_row", ls_tensor),
        ("snapshot_position", ls_tensor),
        ("snapshot_slot", ls_tensor),
        ("snapshot_source", ls_tensor),
        ("replay_pending", ls_tensor),
        ("replay_flush", ls_tensor),
    ]
