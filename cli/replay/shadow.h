// Verification: sampled requests also run alone, chunk by chunk, through the `ref` kernels in pools
// of their own, and every output and state of the batch is compared with that.
//
// f32 pools: the shadow keeps its own f32 state from first to last token. On `ref` any split of a
// row gives the bits of the whole, so this is the request run alone. 16-bit pools: rounding at
// every store makes two runs drift apart, so the judged shadow starts each call from a copy of the
// row's own stored state; a second shadow runs freely in f32 and its distance is reported, not
// judged. Windows are never copied: each shadow builds its own.
//
// A verify row is one call of its accepted tokens; what it rejected is never run. A request that
// started from a cached prefix runs alone from its first token: in a call of its own for what the
// batch skipped. A replay ring is judged against decode without one, except that the judged shadow
// of a 16-bit pool has the same ring: only with it are states stored at the same tokens.
//
// A snapshot is one call too: on 16-bit pools its state is compared with what `ref` makes of the
// row's own stored state up to the snapshot's position. A row that starts from it must hold its
// very bits.
//
// Limits (OPS "Tolerances", relative RMS):
//   output, bf16 | f16   1.05 x the rounding error of the reference itself, per request and layer
//   output, f32          5e-5, as the state
//   output, f16 ring     the root of the sum of squares of that and of 1e-3; f32 pool only
//   state, f32 pool      5e-5 at the end of the request, and after a cached prefix; f16 ring: 1e-3
//   state, 16-bit pool   1e-3 after every call, and in every snapshot
//   windows              equal bits;  padding: zero
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/replay/batch_builder.h"
#include "cli/replay/layer_buffers.h"
#include "cli/replay/layer_stack.h"
#include "linestate/forward_batch.h"
#include "linestate/state_pool.h"

namespace linestate::cli {

/// The largest error in units of its limit, and where it was.
struct WorstError {
  double error = 0.0;
  double limit = 0.0;
  int64_t request = -1;
  int64_t layer = -1;  // decoder layer id
  int64_t head = -1;   // global value head with the largest share
  bool over() const { return !(error <= limit); }
};

struct VerifySummary {
  int64_t requests = 0;  // compared to the end
  int64_t tokens = 0;
  WorstError output;
  WorstError state;
  WorstError free_output;  // 16-bit pools only, not judged: limit 0
  WorstError free_state;
  int64_t failures = 0;             // (request, layer) pairs over a limit, windows and padding
  std::vector<std::string> broken;  // the first few windows and paddings that were wrong
  bool ok() const { return failures == 0; }
  /// One line: the worst request, layer and head of what failed.
  std::string failure() const;
};

struct ShadowOptions {
  double fraction = 0.0;  // of the requests, chosen by a hash of their number
  int64_t max_rows = 0;
  int64_t max_tokens = 0;  // of one row in one step
  bool snapshots = false;  // batches take some
  DType io_dtype = DType::kBF16;
  TpShard shard;
  uint64_t seed = 0;
  int threads = 1;
  void* stream = nullptr;  // that the run's pool is worked on
};

/// Whether `request` is verified.
bool is_sampled(int64_t request, double fraction, uint64_t seed);

class Shadow {
 public:
  /// `stack` and `trace` must outlive the shadow; `pool` is the run's pool. Errors: as the pool and
  /// the runner.
  static Result<Shadow> create(const LayerStack& stack, const StatePool& pool,
                               std::span<const TraceRequest> trace, const ShadowOptions& options);
  /// Bytes of the pools that create() would make.
  static int64_t pool_bytes(const PoolSpec& spec, const ShadowOptions& options);

  Shadow(Shadow&&) noexcept;
  Shadow& operator=(Shadow&&) noexcept;
  ~Shadow();

  // In this order, once a step; `batch` must stay until the end.
  /// Behind the preparation of the batch, which is `forward`, before its first layer.
  Status begin_step(const BuiltBatch& batch, const ForwardBatch& forward);
  /// Before the batch runs layer `index`.
  void before_layer(int64_t index);
  /// After it. Errors: kCancelled when interrupted, else what `ref` reports.
  Status after_layer(int64_t index, const TensorView& out);
  /// After the last layer and the commit of verify rows, whose states changed with it.
  void end_step();
  /// After the request's last step, its slot folded, before that is retired.
  Status finish(int64_t request, int32_t pool_slot);

  const VerifySummary& summary() const;

 private:
  struct Impl;
  explicit Shadow(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace linestate::cli
