// The operators of one KDA layer over one segment of a batch: conv -> gate, delta rule -> norm.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "linestate/backend.h"
#include "linestate/ops/norm.h"

namespace linestate {

/// Ready to launch. Which operators run follows from segment.kind: extend, decode or verify.
struct KdaSegment {
  Segment segment;
  bool norm = false;
  CausalConv1dParams conv;
  KdaParams kda;
  KdaRecord record;     // verify
  TensorView record_x;  // verify
  ReplayRing ring;      // decode of a pool with replay rings; undefined tensors without
  GatedRmsNormParams gated_norm;
};

/// Kernel names of the segment's operators.
struct KdaKernelNames {
  std::string_view conv;
  std::string_view attention;
  std::string_view norm;
};
KdaKernelNames kda_kernel_names(const KernelOptions& options, std::string_view call, RowKind kind);

/// Buffers between the operators, over the whole token capacity.
struct KdaBuffers {
  TensorView conv_out;       // [T, channels], io dtype: the convolution rounds as a model does
  TensorView attention_out;  // [T, HV, V] f32, read by the norm alone; undefined without a norm
  int64_t bytes = 0;
};
/// `memory` is the device's; null counts the bytes.
KdaBuffers take_kda_buffers(const LayerSpec& layer, DType io_dtype, int64_t tokens, bool norm,
                            void* memory, Device device);

/// The first tokens of every tensor of a record.
KdaRecord record_of(const KdaRecord& record, int64_t tokens);

/// What every segment of a layer shares.
struct KdaLayerCall {
  const LayerSpec& layer;
  const KdaLayerWeights& weights;
  const StatePool& pool;
  int64_t pool_layer;
  const KdaLayerIo& io;
  const KdaBuffers& buffers;
};
KdaSegment plan_kda_segment(const KdaLayerCall& call, const Segment& segment);

/// Checks and selects every operator; returns the scratch that the largest needs.
Result<int64_t> kda_segment_scratch(const KdaSegment& plan, const KdaKernelNames& names,
                                    const ExecContext& context);
Status run_kda_segment(const KdaSegment& plan, const KdaKernelNames& names,
                       const ExecContext& context);
void explain_kda_segment(const KdaSegment& plan, const KdaKernelNames& names,
                         const ExecContext& context, std::vector<KernelChoice>& choices);

}  // namespace linestate
