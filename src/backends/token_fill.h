// What a forward pass writes besides its operators: zeros where no token is real, and the inputs
// that commit will need. On the host for the CPU, queued on the stream for CUDA.
#pragma once

#include <cstdint>

#include "linestate/exec_context.h"
#include "linestate/forward_batch.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

/// Zero output for the tokens no operator covers: pad rows and the capacity behind the rows.
Status zero_uncovered_tokens(const ForwardMetadata& metadata, const TensorView& out,
                             const ExecContext& context);

/// Zero output for a segment's tokens that are not real: padding slots, tokens at and beyond
/// num_valid or behind the last row, and inert nodes of draft trees. A norm cannot know them: it
/// would make NaN of a zero and an unread gate.
Status zero_unreal_tokens(const Segment& segment, int64_t num_slots, const TensorView& out,
                          const ExecContext& context);

/// to[t, :] = x[t, :], bit for bit; [T, channels], equal dtypes.
Status copy_tokens(const ConstTensorView& x, const TensorView& to, const ExecContext& context);

/// kNonFinite for `out` where the context asks for it.
Status check_finite_output(const ExecContext& context, const ConstTensorView& out);

#ifdef LINESTATE_CUDA
// The same on a GPU; `out` is [T, A, B] here.
Status zero_tokens_cuda(const TensorView& out, const ExecContext& context);
Status zero_unreal_tokens_cuda(const Segment& segment, int64_t num_slots, const TensorView& out,
                               const ExecContext& context);
Status copy_tokens_cuda(const ConstTensorView& x, const TensorView& to, const ExecContext& context);
#endif

}  // namespace linestate
