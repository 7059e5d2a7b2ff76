// The three functions of every operator.
#include "capi/c_params.h"
#include "linestate/kernel_info.h"
#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"
#include "ops/causal_conv1d/update/causal_conv1d_update_kernels.h"
#include "ops/causal_conv1d/verify/causal_conv1d_verify_kernels.h"
#include "ops/draft_tree/from_links/tree_from_links_kernels.h"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"
#include "ops/kda/replay/kda_decode_replay_kernels.h"
#include "ops/kda/verify/kda_verify_kernels.h"
#include "ops/lightning/commit/lightning_commit_kernels.h"
#include "ops/lightning/decode/lightning_decode_kernels.h"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"
#include "ops/lightning/replay/lightning_decode_replay_kernels.h"
#include "ops/lightning/verify/lightning_verify_kernels.h"
#include "ops/norm/gated_rms_norm/gated_rms_norm_kernels.h"
#include "ops/norm/group_rms_norm/group_rms_norm_kernels.h"
#include "ops/norm/rms_sum_sq/rms_sum_sq_kernels.h"
#include "ops/replay/fold/replay_fold_kernels.h"
#include "ops/replay/step_begin/replay_step_begin_kernels.h"
#include "ops/state_ops/clear/state_clear_kernels.h"
#include "ops/state_ops/copy/state_copy_kernels.h"

namespace linestate::capi {
namespace {

template <typename Params, typename CParams>
Status read_call(Reader& reader, const CParams* in, const ls_context* c_context, Params* params,
                 ExecContext* context) {
  read(reader, in, params);
  read(reader, c_context, context);
  return reader.status();
}

/// Reads the arguments and hands them to `use(params, context)`.
template <typename Params, typename CParams, typename Use>
ls_status call(const OpTable<Params>&, const CParams* in, const ls_context* c_context,
               const Use& use) {
  return fenced([&]() -> Status {
    Reader reader;
    Params params;
    ExecContext context;
    LINESTATE_RETURN_IF_ERROR(read_call(reader, in, c_context, &params, &context));
    return use(params, context);
  });
}

template <typename Params, typename CParams>
ls_status run(const OpTable<Params>& table, const CParams* in, const ls_context* c_context,
              const char* kernel) {
  return call(table, in, c_context, [&](const Params& params, const ExecContext& context) {
    return run_op(table, params, context, text_or_empty(kernel));
  });
}

template <typename Params, typename CParams>
ls_status workspace(const OpTable<Params>& table, const CParams* in, const ls_context* c_context,
                    const char* kernel, int64_t* bytes) {
  return call(table, in, c_context, [&](const Params& params, const ExecContext& context) {
    return put_result("bytes", bytes,
                      op_workspace_bytes(table, params, context, text_or_empty(kernel)));
  });
}

template <typename Params, typename CParams>
ls_status explain(const OpTable<Params>& table, const CParams* in, const ls_context* c_context,
                  const char* kernel, char* buffer, size_t size, size_t* needed) {
  return call(table, in, c_context, [&](const Params& params, const ExecContext& context) {
    const KernelChoice choice = explain_op(table, params, context, text_or_empty(kernel));
    return put_text(describe(choice), buffer, size, needed);
  });
}

}  // namespace
}  // namespace linestate::capi

#define LS_DEFINE_OP(op, CParams)                                                               \
  ls_status ls_##op(const CParams* params, const ls_context* context, const char* kernel) {     \
    return linestate::capi::run(linestate::op##_table(), params, context, kernel);              \
  }                                                                                             \
  ls_status ls_##op##_workspace_bytes(const CParams* params, const ls_context* context,         \
                                      const char* kernel, int64_t* bytes) {                     \
    return linestate::capi::workspace(linestate::op##_table(), params, context, kernel, bytes); \
  }                                                                                             \
  ls_status ls_##op##_explain(const CParams* params, const ls_context* context,                 \
                              const char* kernel, char* buffer, size_t size, size_t* needed) {  \
    return linestate::capi::explain(linestate::op##_table(), params, context, kernel, buffer,   \
                                    size, needed);                                              \
  }

LS_DEFINE_OP(causal_conv1d_prefill, ls_causal_conv1d_params)
LS_DEFINE_OP(causal_conv1d_update, ls_causal_conv1d_params)
LS_DEFINE_OP(causal_conv1d_verify, ls_causal_conv1d_verify_params)
LS_DEFINE_OP(kda_prefill, ls_kda_params)
LS_DEFINE_OP(kda_decode, ls_kda_params)
LS_DEFINE_OP(kda_verify, ls_kda_verify_params)
LS_DEFINE_OP(kda_commit, ls_kda_commit_params)
LS_DEFINE_OP(kda_decode_replay, ls_kda_replay_params)
LS_DEFINE_OP(lightning_prefill, ls_lightning_params)
LS_DEFINE_OP(lightning_decode, ls_lightning_params)
LS_DEFINE_OP(lightning_verify, ls_lightning_verify_params)
LS_DEFINE_OP(lightning_commit, ls_lightning_commit_params)
LS_DEFINE_OP(lightning_decode_replay, ls_lightning_replay_params)
LS_DEFINE_OP(gated_rms_norm, ls_gated_rms_norm_params)
LS_DEFINE_OP(group_rms_norm, ls_group_rms_norm_params)
LS_DEFINE_OP(rms_sum_sq, ls_rms_sum_sq_params)
LS_DEFINE_OP(tree_from_links, ls_tree_from_links_params)
LS_DEFINE_OP(state_clear, ls_state_clear_params)
LS_DEFINE_OP(state_copy, ls_state_copy_params)
LS_DEFINE_OP(replay_step_begin, ls_replay_step_params)
LS_DEFINE_OP(replay_fold, ls_replay_fold_params)
