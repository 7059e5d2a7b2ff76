#include "capi/handles.h"
#include "capi/outgoing.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

// The arrays behind a ForwardBatch.
struct BatchArrays {
  std::vector<Row> rows;
  std::vector<SnapshotRequest> snapshots;
};

void read_rows(Reader& reader, const ls_forward_batch& in, std::vector<Row>* rows) {
  for (size_t i = 0; i < in.num_rows && reader.status().ok(); ++i) {
    ls_row from{};
    reader.require_ok(load_element("batch.rows", in.rows, i, &from));
    Row& row = rows->emplace_back();
    row.slot = from.slot;
    reader.choice("batch.rows.kind", from.kind, RowKind::kPad, &row.kind);
    row.start = from.start;
    row.tokens = from.tokens;
    row.num_valid = from.num_valid;
    row.force_flush = from.force_flush != 0;
  }
}

void read_slot_work(Reader& reader, const ls_forward_batch& in, DeferredSlotWork* work) {
  if (in.num_clears > 0) reader.require_ok(require({{"batch.clear", in.clear}}));
  if (in.num_copies > 0) {
    reader.require_ok(require({{"batch.copy_src", in.copy_src}, {"batch.copy_dst", in.copy_dst}}));
  }
  if (in.num_parents > 0) reader.require_ok(require({{"batch.parent", in.parent}}));
  if (!reader.status().ok()) return;
  work->clear.assign(in.clear, in.clear + in.num_clears);
  for (size_t i = 0; i < in.num_copies; ++i) work->copy.push_back({in.copy_src[i], in.copy_dst[i]});
  for (size_t i = 0; i < in.num_restores && reader.status().ok(); ++i) {
    ls_slot_restore from{};
    reader.require_ok(load_element("batch.restores", in.restores, i, &from));
    if (from.pack_size > 0) reader.require_ok(require({{"batch.restores.pack", from.pack}}));
    work->restore.push_back({{static_cast<const std::byte*>(from.pack), from.pack_size},
                             from.slot,
                             {from.allow_state_dtype_change != 0, from.allow_other_numerics != 0}});
  }
}

void read_shape(Reader& reader, const ls_batch_shape* in, BatchShape* shape) {
  if (in == nullptr) return;
  const ls_batch_shape from = reader.sized("batch.shape", in);
  shape->extend = {from.extend_rows, from.extend_tokens, from.extend_snapshots};
  shape->decode = {from.decode_rows, from.decode_rows, from.decode_snapshots};
  shape->verify = {from.verify_rows, from.verify_tokens, from.verify_snapshots};
}

void read_batch(Reader& reader, const ls_forward_batch* c_batch, BatchArrays* arrays,
                ForwardBatch* batch) {
  const ls_forward_batch in = reader.sized("batch", c_batch);
  read_rows(reader, in, &arrays->rows);
  for (size_t i = 0; i < in.num_snapshots && reader.status().ok(); ++i) {
    ls_snapshot_request from{};
    reader.require_ok(load_element("batch.snapshots", in.snapshots, i, &from));
    arrays->snapshots.push_back({from.row, from.position, from.slot});
  }
  read_slot_work(reader, in, &batch->pre);
  read_shape(reader, in.shape, &batch->shape);
  reader.tensor("batch.slot_table", in.slot_table, &batch->slot_table);
  if (!reader.status().ok()) return;
  batch->rows = arrays->rows;
  batch->token_capacity = in.token_capacity;
  if (in.num_parents > 0) batch->parent = {in.parent, in.num_parents};
  batch->snapshots = arrays->snapshots;
}

}  // namespace

ls_status ls_metadata_create(const ls_forward_capacity* capacity, int32_t device_type,
                             int32_t device_index, ls_metadata** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    ls_forward_capacity room{};
    LINESTATE_RETURN_IF_ERROR(load("capacity", capacity, &room));
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    return put_handle(
        out, ForwardMetadata::create(
                 {room.rows, room.verify_tokens, room.snapshots, room.slot_work}, *device));
  });
}

void ls_metadata_destroy(ls_metadata* metadata) { delete metadata; }

ls_status ls_metadata_prepare(ls_metadata* metadata, const ls_forward_batch* batch,
                              const ls_pool* pool, const ls_context* context) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"metadata", metadata}, {"pool", pool}}));
    Reader reader;
    BatchArrays arrays;
    ForwardBatch to;
    ExecContext exec;
    read_batch(reader, batch, &arrays, &to);
    read(reader, context, &exec);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    LINESTATE_RETURN_IF_ERROR(metadata->metadata.prepare(to, pool->pool, exec));
    metadata->num_snapshots = to.snapshots.size();
    return {};
  });
}

ls_status ls_metadata_counts(const ls_metadata* metadata, ls_batch_counts* counts) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"metadata", metadata}}));
    const ForwardMetadata& from = metadata->metadata;
    const ls_batch_counts to{
        sizeof(to),          from.num_rows(),    from.num_tokens(),        from.token_capacity(),
        from.num_prefills(), from.num_decodes(), from.num_prefill_tokens()};
    return store("counts", to, counts);
  });
}

ls_status ls_metadata_snapshot_taken(const ls_metadata* metadata, size_t request, int32_t* taken) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"metadata", metadata}}));
    if (request >= metadata->num_snapshots) {
      return invalid_argument("request: expected one of ", metadata->num_snapshots, ", got ",
                              request);
    }
    return put("taken", taken, metadata->metadata.snapshot_taken(request) ? 1 : 0);
  });
}

ls_status ls_metadata_read_taken(ls_metadata* metadata, const ls_context* context) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"metadata", metadata}}));
    Reader reader;
    ExecContext exec;
    read(reader, context, &exec);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return metadata->metadata.read_taken(exec);
  });
}

ls_status ls_metadata_device(const ls_metadata* metadata, int32_t* device_type,
                             int32_t* device_index) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require(
        {{"metadata", metadata}, {"device_type", device_type}, {"device_index", device_index}}));
    *device_type = static_cast<int32_t>(metadata->metadata.device().type);
    *device_index = metadata->metadata.device().index;
    return {};
  });
}

ls_status ls_metadata_segment(const ls_metadata* metadata, int32_t kind, ls_segment* segment) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"metadata", metadata}}));
    Reader reader;
    RowKind row_kind = RowKind::kPad;
    reader.choice("kind", kind, RowKind::kPad, &row_kind);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    const Segment* from = metadata->metadata.find_segment(row_kind);
    if (from == nullptr) {
      return Status(StatusCode::kNotFound, concat("kind: expected a kind that the batch has, got ",
                                                  row_kind_name(row_kind)));
    }
    ls_segment to{};
    to.row_begin = from->row_begin;
    to.row_end = from->row_end;
    to.token_begin = from->token_begin;
    to.token_end = from->token_end;
    to.slot = to_c(from->rows.slot);
    to.query_start_loc = to_c(from->rows.query_start_loc);
    to.start = to_c(from->rows.start);
    to.num_valid = to_c(from->rows.num_valid);
    to.parent = to_c(from->parent);
    to.taken = to_c(from->taken);
    to.snapshot_row = to_c(from->snapshots.row);
    to.snapshot_position = to_c(from->snapshots.position);
    to.snapshot_slot = to_c(from->snapshots.slot);
    to.snapshot_source = to_c(from->snapshot_source);
    to.replay_pending = to_c(from->replay_pending);
    to.replay_flush = to_c(from->replay_flush);
    return store("segment", to, segment);
  });
}

ls_status ls_metadata_rows(const ls_metadata* metadata, ls_rows* rows) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"metadata", metadata}}));
    return store("rows", to_c(metadata->metadata.rows()), rows);
  });
}
