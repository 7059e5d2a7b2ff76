#include <array>

#include "base/check.h"
#include "base/device_status.h"
#include "base/element.h"
#include "base/int_math.h"
#include "linestate/ops/state_ops.h"
#include "ops/state_ops/copy/state_copy_kernels.h"
#include "ops/state_ops/state_check.h"

namespace linestate {
namespace {

bool same_inner_shape(const ConstTensorView& a, const ConstTensorView& b) {
  bool same = a.rank == b.rank;
  for (int dim = 1; same && dim < a.rank; ++dim) same = a.shape[dim] == b.shape[dim];
  return same;
}

// Two views of one pool must agree on what a slot is; otherwise the planes must lie apart.
Status check_plane_memory(const std::string& dst_name, const ConstTensorView& dst,
                          const std::string& src_name, const ConstTensorView& src) {
  if (dst.data != src.data || dst.num_elements() == 0 || src.num_elements() == 0) {
    return check_no_overlap(dst_name.c_str(), dst, src_name.c_str(), src);
  }
  if (dst.dtype == src.dtype && dst.stride[0] == src.stride[0]) return {};
  return invalid_argument(dst_name, ": expected the dtype and slot stride of ", src_name,
                          " in the same memory, ", describe(src), ", got ", describe(dst));
}

Status check_pair(const StateCopyParams& params, size_t i, const ExecContext& context) {
  const ConstTensorView& src = params.src[i];
  const ConstTensorView dst = params.dst[i];
  const std::string src_name = concat("src[", i, "]");
  const std::string dst_name = concat("dst[", i, "]");
  LINESTATE_RETURN_IF_ERROR(check_plane(src_name, src, context));
  LINESTATE_RETURN_IF_ERROR(check_plane(dst_name, dst, context));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap(dst_name.c_str(), dst));
  if (!same_inner_shape(src, dst)) {
    return invalid_argument(dst_name, ": expected the inner shape of ", src_name, ", ",
                            describe(src), ", got ", describe(dst));
  }
  if (src.dtype != dst.dtype) {
    LINESTATE_RETURN_IF_ERROR(check_compute_dtype(src_name.c_str(), src));
    LINESTATE_RETURN_IF_ERROR(check_compute_dtype(dst_name.c_str(), dst));
  }
  if (src.shape[0] != params.src[0].shape[0]) {
    return invalid_argument(src_name, ": expected the ", params.src[0].shape[0],
                            " slots of src[0], got ", src.shape[0]);
  }
  if (dst.shape[0] != params.dst[0].shape[0]) {
    return invalid_argument(dst_name, ": expected the ", params.dst[0].shape[0],
                            " slots of dst[0], got ", dst.shape[0]);
  }
  return check_plane_memory(dst_name, dst, src_name, src);
}

// Ids as the host sees them: live destinations distinct, and within one pool none of them a live
// source. Looked at in windows of a bitmap on the stack, so that nothing is allocated.
Status check_ids(const StateCopyParams& params, bool same_pool, const ExecContext& context) {
  constexpr int64_t kWindow = 65536;
  using Bitmap = std::array<uint64_t, kWindow / 64>;
  const int64_t src_count = params.src[0].shape[0];
  const int64_t dst_count = params.dst[0].shape[0];
  const int64_t n = params.src_slots.shape[0];
  const auto live = [&](int64_t i) {
    const int64_t from = load_index(params.src_slots, i);
    const int64_t to = load_index(params.dst_slots, i);
    return from >= 0 && from < src_count && to >= 0 && to < dst_count;
  };
  for (int64_t i = 0; i < n; ++i) {
    if (load_index(params.src_slots, i) >= src_count ||
        load_index(params.dst_slots, i) >= dst_count) {
      raise_flag(context.status, DeviceFlag::kSlotOutOfRange, static_cast<int32_t>(i));
    }
  }
  const auto mark = [](Bitmap& seen, int64_t at) {  // true when it was marked before
    uint64_t& word = seen[static_cast<size_t>(at / 64)];
    const uint64_t bit = uint64_t{1} << (at % 64);
    const bool before = (word & bit) != 0;
    word |= bit;
    return before;
  };
  for (int64_t base = 0; n > 0 && base < dst_count; base += kWindow) {
    Bitmap sources{};
    Bitmap targets{};
    for (int64_t i = 0; same_pool && i < n; ++i) {
      const int64_t at = load_index(params.src_slots, i) - base;
      if (live(i) && at >= 0 && at < kWindow) mark(sources, at);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = load_index(params.dst_slots, i) - base;
      if (!live(i) || at < 0 || at >= kWindow) continue;
      if (mark(targets, at)) {
        return invalid_argument("dst_slots: expected distinct live slots, got slot ", base + at,
                                " again at index ", i);
      }
      if (same_pool && mark(sources, at)) {
        return invalid_argument("dst_slots: expected no source slot of the same pool, got slot ",
                                base + at, " at index ", i);
      }
    }
  }
  return {};
}

Status check(const StateCopyParams& params, const ExecContext& context) {
  if (params.src.size() != params.dst.size()) {
    return invalid_argument("dst: expected ", params.src.size(), " planes as in src, got ",
                            params.dst.size());
  }
  bool same_pool = false;
  for (size_t i = 0; i < params.src.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(check_pair(params, i, context));
    same_pool = same_pool || params.src[i].data == params.dst[i].data;
  }
  LINESTATE_RETURN_IF_ERROR(check_slot_ids("src_slots", params.src_slots, kAnySize, context));
  LINESTATE_RETURN_IF_ERROR(
      check_slot_ids("dst_slots", params.dst_slots, params.src_slots.shape[0], context));
  if (context.device.type != DeviceType::kCpu || params.src.empty()) return {};
  return check_ids(params, same_pool, context);
}

constexpr KernelRow<StateCopyParams> kRows[] = {
    {"cuda", DeviceType::kCuda, "any strides, sixteen planes a launch, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(state_copy_cuda)},
    {"cpu", DeviceType::kCpu,
     "any strides, equal dtypes bit for bit, f32 | bf16 | f16 into each other", nullptr, nullptr,
     state_copy_cpu},
    {"ref", DeviceType::kCpu, "element by element", nullptr, nullptr, state_copy_ref},
};

constexpr OpTable<StateCopyParams> kTable{"state_copy", kRows, check};

}  // namespace

const OpTable<StateCopyParams>& state_copy_table() { return kTable; }

Status state_copy(const StateCopyParams& params, const ExecContext& context,
                  std::string_view kernel) {
  return run_op(kTable, params, context, kernel);
}

KernelChoice explain_state_copy(const StateCopyParams& params, const ExecContext& context,
                                std::string_view kernel) {
  return explain_op(kTable, params, context, kernel);
}

}  // namespace linestate
