// Argument checks shared by every operator. Messages name the argument, the expectation and the
// value: "v: expected shape [10, 4, 64], got bf16[10, 2, 64] strides (...) on cpu".
#pragma once

#include <initializer_list>

#include "base/message.h"
#include "linestate/exec_context.h"
#include "linestate/rows.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

inline constexpr int64_t kAnySize = -1;

/// Rank and sizes; kAnySize matches every size. An undefined tensor fails.
Status check_shape(const char* name, const ConstTensorView& tensor,
                   std::initializer_list<int64_t> shape);
/// One of the listed dtypes.
Status check_dtype(const char* name, const ConstTensorView& tensor,
                   std::initializer_list<DType> allowed);
/// f32, bf16 or f16.
Status check_compute_dtype(const char* name, const ConstTensorView& tensor);
/// On the context's device, with memory behind a non-empty view.
Status check_placement(const char* name, const ConstTensorView& tensor, const ExecContext& context);
/// A head dimension K or V: a multiple of 16 up to 256.
Status check_head_dim(const char* name, int64_t dim);
/// Different elements of an output must not share memory.
Status check_no_self_overlap(const char* name, const ConstTensorView& tensor);
/// Memory of `output` and `input` must not intersect.
Status check_no_overlap(const char* output_name, const ConstTensorView& output,
                        const char* input_name, const ConstTensorView& input);
/// The workspace holds at least `bytes` and is aligned to 64.
Status check_workspace(const ExecContext& context, int64_t bytes);

/// Live ids (in [0, num_slots)) of an index tensor [n] are distinct. Allocates nothing.
Status check_distinct(const char* name, const ConstTensorView& slots, int64_t num_slots);

/// RowTensors of a prefill-shaped call over T tokens and P slots: shapes and dtypes, and on the CPU
/// the values too (offsets from 0, monotone, <= T; 0 <= start; 0 <= num_valid <= tokens; live slots
/// distinct). Raises kSlotOutOfRange in context.status for ids >= P.
Status check_prefill_rows(const RowTensors& rows, int64_t num_tokens, int64_t num_slots,
                          const ExecContext& context);
/// The same for one token a row: N = num_tokens rows; query_start_loc is not looked at.
Status check_decode_rows(const RowTensors& rows, int64_t num_tokens, int64_t num_slots,
                         const ExecContext& context);

}  // namespace linestate
