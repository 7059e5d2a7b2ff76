// A block of channels of the convolution on the CPU: weights and the last W inputs as f32 planes,
// so that every loop runs over neighbouring channels. Prefill, update and verify all go through
// here, which is why one token gives the same bits in each.
#pragma once

#include <array>
#include <cstdint>

#include "base/row_access.h"
#include "linestate/ops/causal_conv1d.h"
#include "ops/common/conv_window.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/draft_path.h"

namespace linestate {

class ConvBlock {
 public:
  static constexpr int64_t kChannels = 256;
  static int64_t blocks(const CausalConv1dParams& params);

  /// Block `index` of [0, blocks). `params` must outlive it.
  ConvBlock(const CausalConv1dParams& params, int64_t index);

  /// Outputs of all tokens of the row (zeros behind `valid`), the snapshots wanted of it, then its
  /// new window, for the channels of this block.
  void run_row(const RowInfo& row, const RowSnapshots& snapshots);

  /// Outputs of the row's drafts, each behind its own path; the window is only read. `parent` is
  /// undefined for a chain.
  void run_drafts(const RowInfo& row, const ConstTensorView& parent);

 private:
  using Plane = std::array<float, static_cast<size_t>(kChannels)>;

  void load_history(const RowInfo& row);
  void load_past(const RowInfo& row, int64_t column, Plane& plane);
  void load_token(int64_t token, Plane& plane);
  void run_token(int64_t token, int64_t newest);
  void run_node(const RowInfo& row, const DraftTree& tree, int64_t node);
  /// Output of `token` from planes inputs_[(newest + 1 + j) % W], oldest first.
  void convolve_token(int64_t token, int64_t newest);
  void zero_token(int64_t token);

  const CausalConv1dParams& params_;
  ChannelRange channels_;
  int64_t width_;
  alignas(64) Plane bias_;
  alignas(64) std::array<Plane, 4> weight_;  // [j][channel]
  alignas(64) std::array<Plane, 4> inputs_;  // ring: input i of the row is at (i + W - 1) mod W
  alignas(64) Plane y_;
};

}  // namespace linestate
