#include "cli/bench/bench_suite.h"

#include <algorithm>

#include "cli/bench/bench_settings.h"
#include "cli/replay/settings.h"

namespace linestate::cli {
namespace {

constexpr auto bounded = KdaGate::kBounded;
constexpr auto softplus = KdaGate::kSoftplus;
constexpr auto bf16 = DType::kBF16;
constexpr auto f16 = DType::kF16;
constexpr auto f32 = DType::kF32;

// Times of public kernels measured on one NVIDIA H200 on 2026-11-30 (driver 580.159.04, CUDA 13.0,
// 1980 MHz); bench/results/README.md has the versions. clang-format off keeps a row a line.
// clang-format off
constexpr SuiteRow kPeers[] = {
    {"kda_prefill", 4, "1x8192", bounded, bf16, "fla", 309, 80},
    {"kda_prefill", 4, "8x1024", bounded, bf16, "FlashKDA", 163, 45},
    {"kda_prefill", 4, "list6", bounded, bf16, "fla", 207},
    {"kda_prefill", 4, "mix64", bounded, bf16, "FlashKDA", 166, 50},
    {"kda_prefill", 12, "1x8192", bounded, bf16, "fla", 526, 140},
    {"kda_prefill", 12, "8x1024", bounded, bf16, "FlashKDA", 218, 70},
    {"kda_prefill", 12, "list6", bounded, bf16, "FlashKDA", 421, 110},
    {"kda_prefill", 12, "mix64", bounded, bf16, "FlashKDA", 361, 120},
    {"kda_prefill", 32, "1x512", bounded, bf16, "FlashKDA", 97},
    {"kda_prefill", 32, "1x2048", bounded, bf16, "FlashKDA", 289},
    {"kda_prefill", 32, "1x8192", bounded, bf16, "fla", 967, 260},
    {"kda_prefill", 32, "1x32768", bounded, bf16, "fla", 3728},
    {"kda_prefill", 32, "8x1024", bounded, bf16, "FlashKDA", 424, 150},
    {"kda_prefill", 32, "list6", bounded, bf16, "FlashKDA", 668, 210},
    {"kda_prefill", 32, "mix64", bounded, bf16, "FlashKDA", 825, 290},
    {"kda_prefill", 64, "1x8192", bounded, bf16, "FlashKDA", 1250, 480},
    {"kda_prefill", 64, "8x1024", bounded, bf16, "FlashKDA", 811, 290},
    {"kda_prefill", 64, "list6", bounded, bf16, "FlashKDA", 1010},
    {"kda_prefill", 64, "mix64", bounded, bf16, "FlashKDA", 1573},
    {"kda_prefill", 96, "1x8192", bounded, bf16, "FlashKDA", 1463, 490},
    {"kda_prefill", 96, "8x1024", bounded, bf16, "FlashKDA", 1192, 420},
    {"kda_prefill", 96, "list6", bounded, bf16, "FlashKDA", 1392, 480},
    {"kda_prefill", 96, "mix64", bounded, bf16, "FlashKDA", 2319, 850},
    {"kda_prefill", 32, "1x512", softplus, bf16, "fla", 125},
    {"kda_prefill", 32, "1x2048", softplus, bf16, "fla", 373},
    {"kda_prefill", 32, "1x8192", softplus, bf16, "fla", 1059},
    {"kda_prefill", 32, "1x32768", softplus, bf16, "fla", 4076},
    {"kda_prefill", 32, "8x1024", softplus, bf16, "fla", 1091},
    {"kda_prefill", 32, "list6", softplus, bf16, "fla", 1087},
    {"kda_prefill", 32, "mix64", softplus, bf16, "fla", 2019},
    {"kda_decode", 4, "1x1", softplus, bf16, "fla", 3.9},
    {"kda_decode", 4, "8x1", softplus, bf16, "fla", 4.9},
    {"kda_decode", 4, "32x1", softplus, bf16, "fla", 8.4},
    {"kda_decode", 4, "64x1", softplus, bf16, "SGLang sigmoid", 13.7},
    {"kda_decode", 4, "128x1", softplus, bf16, "SGLang packed", 25},
    {"kda_decode", 4, "256x1", softplus, bf16, "SGLang packed", 42.7},
    {"kda_decode", 12, "1x1", softplus, bf16, "fla", 4.1, 3},
    {"kda_decode", 12, "8x1", softplus, bf16, "fla", 7, 5.5},
    {"kda_decode", 12, "32x1", softplus, bf16, "fla", 20.1, 15.5},
    {"kda_decode", 12, "64x1", softplus, bf16, "SGLang packed", 34.5, 28},
    {"kda_decode", 12, "128x1", softplus, bf16, "SGLang packed", 59.8},
    {"kda_decode", 12, "256x1", softplus, bf16, "SGLang packed", 109.7, 103},
    {"kda_decode", 32, "1x1", softplus, bf16, "fla", 4.8},
    {"kda_decode", 32, "8x1", softplus, bf16, "SGLang sigmoid", 13.6},
    {"kda_decode", 32, "32x1", softplus, bf16, "SGLang packed", 42.7},
    {"kda_decode", 32, "64x1", softplus, bf16, "SGLang packed", 75.7},
    {"kda_decode", 32, "128x1", softplus, bf16, "SGLang packed", 141.5},
    {"kda_decode", 32, "256x1", softplus, bf16, "SGLang packed", 276.1},
    {"kda_decode", 96, "1x1", softplus, bf16, "fla", 6.9, 5.5},
    {"kda_decode", 96, "8x1", softplus, bf16, "SGLang packed", 34.5},
    {"kda_decode", 96, "32x1", softplus, bf16, "SGLang packed", 107.5, 104},
    {"kda_decode", 96, "64x1", softplus, bf16, "SGLang packed", 206.7},
    {"kda_decode", 96, "128x1", softplus, bf16, "SGLang packed", 405.2},
    {"kda_decode", 96, "256x1", softplus, bf16, "SGLang packed", 801.6, 795},
    {"kda_verify", 12, "1x4", softplus, bf16, "fla", 9.2, 5},
    {"kda_verify", 12, "8x4", softplus, bf16, "fla", 15.3},
    {"kda_verify", 12, "32x4", softplus, bf16, "fla", 47.2},
    {"kda_verify", 12, "64x4", softplus, bf16, "SGLang sigmoid", 78.7},
    {"kda_verify", 12, "1x8", softplus, bf16, "fla", 16.8},
    {"kda_verify", 12, "8x8", softplus, bf16, "fla", 26.1},
    {"kda_verify", 12, "32x8", softplus, bf16, "SGLang sigmoid", 81.5},
    {"kda_verify", 12, "64x8", softplus, bf16, "SGLang sigmoid", 134.1, 26},
    {"kda_verify", 32, "1x4", softplus, bf16, "fla", 10.5},
    {"kda_verify", 32, "8x4", softplus, bf16, "SGLang sigmoid", 29.5},
    {"kda_verify", 32, "32x4", softplus, bf16, "SGLang sigmoid", 100.1},
    {"kda_verify", 32, "64x4", softplus, bf16, "SGLang sigmoid", 192.3},
    {"kda_verify", 32, "1x8", softplus, bf16, "fla", 18.1},
    {"kda_verify", 32, "8x8", softplus, bf16, "SGLang sigmoid", 48.6},
    {"kda_verify", 32, "32x8", softplus, bf16, "SGLang sigmoid", 173.4},
    {"kda_verify", 32, "64x8", softplus, bf16, "SGLang sigmoid", 339.1, 66},
    {"lightning_prefill", 8, "1x8192", softplus, bf16, "fla kernels", 86, 45},
    {"lightning_prefill", 8, "8x1024", softplus, bf16, "fla kernels", 75},
    {"lightning_prefill", 8, "list6", softplus, bf16, "fla kernels", 83},
    {"lightning_prefill", 8, "mix64", softplus, bf16, "fla kernels", 139},
    {"lightning_prefill", 16, "1x8192", softplus, bf16, "fla kernels", 126, 60},
    {"lightning_prefill", 16, "1x8192", softplus, f32, "seg_la", 355, 95},
    {"lightning_prefill", 16, "8x1024", softplus, bf16, "fla kernels", 115},
    {"lightning_prefill", 16, "list6", softplus, bf16, "fla kernels", 137},
    {"lightning_prefill", 16, "mix64", softplus, bf16, "fla kernels", 234, 115},
    {"lightning_prefill", 16, "mix64", softplus, f32, "seg_la", 523},
    {"lightning_prefill", 32, "1x8192", softplus, bf16, "fla kernels", 206},
    {"lightning_prefill", 32, "8x1024", softplus, bf16, "fla kernels", 208},
    {"lightning_prefill", 32, "list6", softplus, bf16, "fla kernels", 238},
    {"lightning_prefill", 32, "mix64", softplus, bf16, "fla kernels", 419},
    {"lightning_prefill", 64, "1x8192", softplus, bf16, "fla kernels", 376, 170},
    {"lightning_prefill", 64, "1x8192", softplus, f32, "seg_la", 1275, 330},
    {"lightning_prefill", 64, "8x1024", softplus, bf16, "fla kernels", 397},
    {"lightning_prefill", 64, "list6", softplus, bf16, "fla kernels", 410},
    {"lightning_prefill", 64, "mix64", softplus, bf16, "fla kernels", 822, 430},
    {"lightning_prefill", 64, "mix64", softplus, f32, "seg_la", 2045},
    {"lightning_decode", 8, "1x1", softplus, bf16, "seg_la", 2.7},
    {"lightning_decode", 8, "8x1", softplus, bf16, "seg_la", 5.2},
    {"lightning_decode", 8, "32x1", softplus, bf16, "seg_la", 11.8},
    {"lightning_decode", 8, "64x1", softplus, bf16, "seg_la", 23.1},
    {"lightning_decode", 8, "128x1", softplus, bf16, "seg_la", 43.1},
    {"lightning_decode", 8, "256x1", softplus, bf16, "seg_la", 74.2},
    {"lightning_decode", 16, "1x1", softplus, bf16, "seg_la", 3.3},
    {"lightning_decode", 16, "8x1", softplus, bf16, "seg_la", 7.4},
    {"lightning_decode", 16, "32x1", softplus, bf16, "seg_la", 22.8},
    {"lightning_decode", 16, "64x1", softplus, bf16, "seg_la", 42.7},
    {"lightning_decode", 16, "128x1", softplus, bf16, "seg_la", 83.4},
    {"lightning_decode", 16, "256x1", softplus, bf16, "seg_la", 143},
    {"lightning_decode", 64, "1x1", softplus, bf16, "seg_la", 5.1, 3.6},
    {"lightning_decode", 64, "8x1", softplus, bf16, "seg_la", 22},
    {"lightning_decode", 64, "32x1", softplus, bf16, "seg_la", 82.4},
    {"lightning_decode", 64, "64x1", softplus, bf16, "minimax", 164.8, 138},
    {"lightning_decode", 64, "128x1", softplus, bf16, "minimax", 330.4},
    {"lightning_decode", 64, "256x1", softplus, bf16, "seg_la", 564.6, 535},
    {"causal_conv1d_update", 12, "1x1", softplus, bf16, "SGLang Triton", 1.21},
    {"causal_conv1d_update", 12, "8x1", softplus, bf16, "SGLang Triton", 1.98},
    {"causal_conv1d_update", 12, "32x1", softplus, bf16, "SGLang Triton", 2.57},
    {"causal_conv1d_update", 12, "64x1", softplus, bf16, "SGLang Triton", 3.75},
    {"causal_conv1d_update", 12, "128x1", softplus, bf16, "SGLang Triton", 5.48},
    {"causal_conv1d_update", 12, "256x1", softplus, bf16, "SGLang Triton", 8.26},
    {"causal_conv1d_update", 32, "1x1", softplus, bf16, "SGLang Triton", 1.81},
    {"causal_conv1d_update", 32, "8x1", softplus, bf16, "SGLang Triton", 2.51},
    {"causal_conv1d_update", 32, "32x1", softplus, bf16, "SGLang Triton", 4.28},
    {"causal_conv1d_update", 32, "64x1", softplus, bf16, "SGLang Triton", 6.43},
    {"causal_conv1d_update", 32, "128x1", softplus, bf16, "SGLang Triton", 10.2},
    {"causal_conv1d_update", 32, "256x1", softplus, bf16, "SGLang Triton", 18.14},
    {"causal_conv1d_update", 96, "1x1", softplus, bf16, "SGLang Triton", 2.23},
    {"causal_conv1d_update", 96, "8x1", softplus, bf16, "SGLang Triton", 3.61},
    {"causal_conv1d_update", 96, "32x1", softplus, bf16, "SGLang Triton", 8.36},
    {"causal_conv1d_update", 96, "64x1", softplus, bf16, "SGLang Triton", 14.05},
    {"causal_conv1d_update", 96, "128x1", softplus, bf16, "SGLang Triton", 27.3},
    {"causal_conv1d_update", 96, "256x1", softplus, bf16, "SGLang Triton", 52.64},
    {"causal_conv1d_prefill", 12, "1x8192", softplus, bf16, "SGLang Triton", 65, 45},
    {"causal_conv1d_prefill", 12, "mix64", softplus, bf16, "SGLang Triton", 108},
    {"causal_conv1d_prefill", 32, "1x8192", softplus, bf16, "SGLang Triton", 161},
    {"causal_conv1d_prefill", 32, "mix64", softplus, bf16, "SGLang Triton", 274},
    {"causal_conv1d_prefill", 96, "1x8192", softplus, bf16, "SGLang Triton", 466, 340},
    {"causal_conv1d_prefill", 96, "mix64", softplus, bf16, "SGLang Triton", 800},
};

constexpr SuiteRow kRest[] = {
    {"kda_decode", 12, "64x1", bounded},
    {"kda_decode", 12, "64x1", softplus, bf16, "", 0, 0, bf16},
    {"kda_decode", 12, "64x1", softplus, bf16, "", 0, 0, f16},
    {"kda_decode", 12, "256x1", softplus, bf16, "", 0, 0, bf16},
    {"kda_decode_replay", 12, "64x1", softplus, bf16, "", 0, 0, f32, 16, f32},
    {"kda_decode_replay", 12, "64x1", softplus, bf16, "", 0, 0, f32, 16, f16},
    {"kda_decode_replay", 12, "256x1", softplus, bf16, "", 0, 0, f32, 16, f32},
    {"kda_decode_replay", 12, "256x1", softplus, bf16, "", 0, 0, f16, 16, f16},
    {"kda_decode_replay", 96, "64x1", softplus, bf16, "", 0, 0, f32, 16, f32},
    {"kda_decode_replay", 96, "64x1", softplus, bf16, "", 0, 0, f32, 8, f32},
    {"kda_layer_decode", 12, "1x1"},
    {"kda_layer_decode", 12, "64x1"},
    {"kda_layer_decode", 12, "256x1"},
    {"kda_layer_decode", 96, "64x1"},
    {"kda_layer_extend", 32, "1x8192", bounded},
    {"kda_layer_extend", 12, "8x1024", bounded},
    {"kda_layer_verify", 12, "64x8"},
    {"kda_commit", 12, "1x4"},
    {"kda_commit", 12, "64x4"},
    {"kda_commit", 12, "64x8"},
    {"kda_commit", 32, "64x8"},
    {"lightning_prefill", 64, "1x8192", softplus, bf16, "", 0, 0, bf16},
    {"lightning_decode", 64, "64x1", softplus, bf16, "", 0, 0, bf16},
    {"lightning_decode", 64, "64x1", softplus, f32},
    {"lightning_decode_replay", 64, "64x1", softplus, bf16, "", 0, 0, f32, 16, f32},
    {"lightning_decode_replay", 16, "64x1", softplus, bf16, "", 0, 0, f32, 16, f32},
    {"lightning_decode_replay", 16, "64x1", softplus, bf16, "", 0, 0, f32, 16, f16},
    {"lightning_verify", 16, "1x4"},
    {"lightning_verify", 16, "64x4"},
    {"lightning_verify", 16, "64x8"},
    {"lightning_verify", 64, "64x8"},
    {"lightning_commit", 16, "64x4"},
    {"lightning_commit", 64, "64x8"},
    {"lightning_layer_decode", 64, "64x1"},
    {"lightning_layer_extend", 64, "1x8192"},
    {"causal_conv1d_verify", 12, "64x8"},
    {"gated_rms_norm", 12, "1x8192"},
    {"gated_rms_norm", 96, "1x8192"},
    {"gated_rms_norm", 12, "64x1"},
    {"group_rms_norm", 64, "1x8192"},
    {"group_rms_norm", 64, "64x1"},
    {"state_clear", 12, "64x1"},
    {"state_copy", 12, "64x1"},
    {"state_copy", 96, "64x1"},
};
// clang-format on

}  // namespace

Result<std::vector<SuiteRow>> bench_suite(const std::string& name) {
  if (name != "peers" && name != "rest" && name != "all") {
    return Status(StatusCode::kInvalidArgument,
                  "--suite: expected peers, rest or all, got " + name);
  }
  std::vector<SuiteRow> rows;
  if (name != "rest") rows.insert(rows.end(), std::begin(kPeers), std::end(kPeers));
  if (name != "peers") rows.insert(rows.end(), std::begin(kRest), std::end(kRest));
  return rows;
}

Result<BenchSpec> spec_of_row(const SuiteRow& row, const BenchSpec& base) {
  BenchSpec spec = base;
  const auto op = std::find_if(bench_ops().begin(), bench_ops().end(),
                               [&](const BenchOp& known) { return known.name == row.op; });
  if (op == bench_ops().end()) {
    return Status(StatusCode::kInternal, std::string("suite: unknown operator ") + row.op);
  }
  spec.op = *op;
  spec.model = op->layer == LayerKind::kLightning ? "ring-flash"
               : row.gate == bounded              ? "kimi-k3"
                                                  : "kimi-linear";
  const Result<ModelConfig> model = resolve_model(spec.model, 0);
  if (!model.ok()) return model.status();
  spec.model_layers = model->num_layers;
  const Result<LayerSpec> layer = with_heads(model->linear_layers.front(), row.value_heads);
  if (!layer.ok()) return layer.status();
  spec.layer = *layer;
  const Result<RowLayout> layout = parse_layout(row.layout);
  if (!layout.ok()) return layout.status();
  spec.layout = *layout;
  spec.io_dtype = row.io_dtype;
  spec.state_dtype = row.state_dtype;
  spec.ring_length = row.ring_length;
  spec.ring_dtype = row.ring_dtype;
  spec.peer = {row.peer, row.peer_us, row.target_us};
  return spec;
}

}  // namespace linestate::cli
