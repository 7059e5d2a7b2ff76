#include "capi/reader.h"

#include <cstdlib>

namespace linestate::capi {
namespace {

// Far above any memory, and small enough that no product of a size or stride with a head size or
// with the bytes of an element overflows.
constexpr int64_t kMostElements = int64_t{1} << 48;

Status check_extents(const char* name, const ls_tensor& in) {
  int64_t elements = 1;
  int64_t reach = 1;
  for (int32_t dim = 0; dim < in.rank; ++dim) {
    const int64_t size = in.shape[dim];
    const int64_t stride = in.stride[dim];
    if (size < 0 || size > kMostElements) {
      return invalid_argument(name, ": expected shape[", dim, "] from 0 to 2^48, got ", size);
    }
    if (stride < -kMostElements || stride > kMostElements) {
      return invalid_argument(name, ": expected stride[", dim, "] from -2^48 to 2^48, got ",
                              stride);
    }
    if (size == 0) continue;
    int64_t step = 0;
    if (__builtin_mul_overflow(elements, size, &elements) || elements > kMostElements ||
        __builtin_mul_overflow(size - 1, std::abs(stride), &step) ||
        __builtin_add_overflow(reach, step, &reach) || reach > kMostElements) {
      return invalid_argument(name, ": expected a tensor of up to 2^48 elements, got more");
    }
  }
  return {};
}

Status check_memory(const char* name, const TensorView& view) {
  if (view.num_elements() == 0) return {};
  if (view.data == nullptr) {
    return invalid_argument(name, ": expected memory, got a null pointer for ", describe(view));
  }
  const int64_t bytes = dtype_bytes(view.dtype);
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) != 0) {
    return invalid_argument(name, ": expected an address aligned to ", bytes,
                            " bytes, got one that is not");
  }
  return {};
}

}  // namespace

Status to_view(const char* name, const ls_tensor& in, TensorView* out) {
  *out = TensorView();
  if (in.rank == 0) return {};
  if (in.rank < 0 || in.rank > kMaxRank) {
    return invalid_argument(name, ": expected rank 0 to ", kMaxRank, ", got ", in.rank);
  }
  if (in.dtype < 0 || in.dtype > LS_BOOL) {
    return invalid_argument(name, ": expected dtype 0 to ", static_cast<int>(LS_BOOL), ", got ",
                            in.dtype);
  }
  const Result<Device> device = to_device(in.device_type, in.device_index);
  if (!device.ok()) return invalid_argument(name, ": ", device.status().message());
  LINESTATE_RETURN_IF_ERROR(check_extents(name, in));
  out->data = in.data;
  out->dtype = static_cast<DType>(in.dtype);
  out->device = *device;
  out->rank = in.rank;
  for (int32_t dim = 0; dim < in.rank; ++dim) {
    out->shape[static_cast<size_t>(dim)] = in.shape[dim];
    out->stride[static_cast<size_t>(dim)] = in.stride[dim];
  }
  return check_memory(name, *out);
}

ls_tensor to_c(const ConstTensorView& view) {
  ls_tensor out{};
  out.data = const_cast<void*>(view.data);
  out.dtype = static_cast<int32_t>(view.dtype);
  out.device_type = static_cast<int32_t>(view.device.type);
  out.device_index = view.device.index;
  out.rank = view.rank;
  for (int dim = 0; dim < kMaxRank; ++dim) {
    out.shape[dim] = view.shape[static_cast<size_t>(dim)];
    out.stride[dim] = view.stride[static_cast<size_t>(dim)];
  }
  return out;
}

Result<Device> to_device(int32_t type, int32_t index) {
  if (type < 0 || type > LS_EXTERNAL) {
    return invalid_argument("device_type: expected 0 to ", static_cast<int>(LS_EXTERNAL), ", got ",
                            type);
  }
  if (index < 0) return invalid_argument("device_index: expected at least 0, got ", index);
  return Device{static_cast<DeviceType>(type), index};
}

void read(Reader& reader, const ls_context* in, ExecContext* out) {
  constexpr int32_t kMostThreads = 4096;
  const ls_context context = reader.sized("context", in);
  const Result<Device> device = to_device(context.device_type, context.device_index);
  if (!device.ok()) return reader.require_ok(device.status());
  if (context.num_threads < 0 || context.num_threads > kMostThreads) {
    reader.require_ok(invalid_argument("context.num_threads: expected 0 to ", kMostThreads,
                                       ", got ", context.num_threads));
  }
  if (context.workspace_bytes < 0) {
    reader.require_ok(invalid_argument("context.workspace_bytes: expected at least 0, got ",
                                       context.workspace_bytes));
  }
  if (reinterpret_cast<uintptr_t>(context.status) % alignof(DeviceStatus) != 0) {
    reader.require_ok(invalid_argument("context.status: expected an address aligned to ",
                                       alignof(DeviceStatus), " bytes, got one that is not"));
  }
  out->device = *device;
  out->num_threads = context.num_threads;
  out->stream = context.stream;
  out->workspace = {context.workspace, context.workspace_bytes};
  out->status = reinterpret_cast<DeviceStatus*>(context.status);
  out->check_finite = context.check_finite != 0;
  out->strict = context.strict != 0;
  out->slots_checked = context.slots_checked != 0;
}

void read(Reader& reader, const ls_rows* in, RowTensors* out) {
  const ls_rows rows = reader.sized("rows", in);
  reader.tensor("rows.slot", rows.slot, &out->slot);
  reader.tensor("rows.query_start_loc", rows.query_start_loc, &out->query_start_loc);
  reader.tensor("rows.start", rows.start, &out->start);
  reader.tensor("rows.num_valid", rows.num_valid, &out->num_valid);
}

void read(Reader& reader, const ls_snapshot_plan* in, SnapshotPlan* out) {
  if (in == nullptr) return;
  const ls_snapshot_plan plan = reader.sized("snapshots", in);
  reader.tensor("snapshots.row", plan.row, &out->row);
  reader.tensor("snapshots.position", plan.position, &out->position);
  reader.tensor("snapshots.slot", plan.slot, &out->slot);
}

void read(Reader& reader, const ls_kda_record* in, KdaRecord* out) {
  const ls_kda_record record = reader.sized("record", in);
  reader.tensor("record.u", record.u, &out->u);
  reader.tensor("record.k", record.k, &out->k);
  reader.tensor("record.k_inverse_norm", record.k_inverse_norm, &out->k_inverse_norm);
  reader.tensor("record.alpha", record.alpha, &out->alpha);
}

void read(Reader& reader, const ls_lightning_record* in, LightningRecord* out) {
  const ls_lightning_record record = reader.sized("record", in);
  reader.tensor("record.k", record.k, &out->k);
  reader.tensor("record.v", record.v, &out->v);
}

}  // namespace linestate::capi
