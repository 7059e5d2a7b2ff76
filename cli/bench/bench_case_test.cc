// The byte model against sums written out by hand, and what layouts mean.
#include "cli/bench/bench_case.h"

#include <gtest/gtest.h>

#include "cli/bench/bench_problem.h"
#include "cli/bench/bench_settings.h"

namespace linestate::cli {
namespace {

BenchSpec spec_of(std::string_view op, const char* model, int64_t heads, const char* layout) {
  BenchSpec spec;
  for (const BenchOp& known : bench_ops()) {
    if (known.name == op) spec.op = known;
  }
  EXPECT_EQ(spec.op.name, op);
  const ModelConfig config = *model_preset(model);
  spec.model = model;
  spec.model_layers = config.num_layers;
  spec.layer = *with_heads(config.linear_layers.front(), heads);
  spec.layout = *parse_layout(layout);
  return spec;
}

TEST(Layout, RowsByTokens) {
  const RowLayout layout = *parse_layout("8x1024");
  EXPECT_EQ(layout.name, "8x1024");
  EXPECT_EQ(layout.rows(), 8);
  EXPECT_EQ(layout.total(), 8192);
  EXPECT_EQ(layout.tokens.back(), 1024);
}

TEST(Layout, NamedOnesHaveTheirPublishedSizes) {
  EXPECT_EQ(parse_layout("mixed")->rows(), 16);
  EXPECT_EQ(parse_layout("mixed")->total(), 22441);  // data/README.md
  EXPECT_EQ(parse_layout("list6")->rows(), 6);
  EXPECT_EQ(parse_layout("list6")->total(), 8192);
  EXPECT_EQ(parse_layout("mix64")->rows(), 64);
  EXPECT_EQ(parse_layout("mix64")->total(), 13410);
}

TEST(Layout, BadOnesSayWhatIsExpected) {
  for (const char* text : {"", "x", "3x", "x3", "0x4", "4x0", "-1x4", "4x4x4", "4 x4", "five",
                           "4097x1", "1x1048577", "1024x2048", "99999999999999999999x1"}) {
    const Result<RowLayout> layout = parse_layout(text);
    ASSERT_FALSE(layout.ok()) << text;
    EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(layout.status().message().find("--layout: expected ROWSxTOKENS"), std::string::npos);
    EXPECT_NE(layout.status().message().find("got " + std::string(text)), std::string::npos);
  }
}

TEST(Work, KdaPrefillWritesTheStateOnce) {
  const BenchWork work = work_of(spec_of("kda_prefill", "kimi-linear", 4, "8x1024"));
  // q, k, v, gate and out of 128 bf16, beta of one, per token and head; a fresh f32 state a row.
  EXPECT_EQ(work.bytes, 8192.0 * 4 * (5 * 256 + 2) + 8.0 * 4 * 65536);
  EXPECT_EQ(work.operations, 8192.0 * 4 * 6 * 128 * 128);
  EXPECT_EQ(work.units, 8192.0 * 4);
  EXPECT_EQ(work.unit, "token-head");
}

TEST(Work, KdaDecodeReadsAndWritesTheState) {
  const BenchWork work = work_of(spec_of("kda_decode", "kimi-linear", 12, "64x1"));
  EXPECT_EQ(work.bytes, 64.0 * 12 * (2 * 65536 + 5 * 256 + 2));
  EXPECT_EQ(work.units, 64.0 * 12);
  EXPECT_EQ(work.unit, "request-head");
}

TEST(Work, KdaVerifyReadsTheStateAndWritesRecords) {
  const BenchWork work = work_of(spec_of("kda_verify", "kimi-linear", 2, "3x5"));
  const double record = 128 * 4 + 128 * 2 + 4 + 128 * 4;  // u, k, inverse norm, alpha
  EXPECT_EQ(work.bytes, 3.0 * 2 * 65536 + 15.0 * 2 * (5 * 256 + 2 + record));
}

TEST(Work, ValueHeadsShareKeys) {
  // tiny: H = 2 for HV = 4, K = V = 64.
  const BenchWork work = work_of(spec_of("kda_prefill", "tiny", 4, "1x10"));
  EXPECT_EQ(work.bytes, 10.0 * (2 * 2 * 128 + 4 * 128 + 4 * 128 + 4 * 2 + 4 * 128) + 4.0 * 16384);
}

TEST(Work, LightningHasNoGate) {
  const BenchWork prefill = work_of(spec_of("lightning_prefill", "minimax-01", 8, "1x1024"));
  EXPECT_EQ(prefill.bytes, 1024.0 * 8 * 4 * 256 + 8.0 * 65536);
  EXPECT_EQ(prefill.operations, 1024.0 * 8 * 4 * 128 * 128);
  const BenchWork decode = work_of(spec_of("lightning_decode", "minimax-01", 8, "2x1"));
  EXPECT_EQ(decode.bytes, 2.0 * 8 * (4 * 256 + 2 * 65536));
  const BenchWork verify = work_of(spec_of("lightning_verify", "minimax-01", 8, "2x4"));
  EXPECT_EQ(verify.bytes, 2.0 * 8 * 65536 + 8.0 * 8 * (4 * 256 + 2 * 256));
}

TEST(Work, CommitsReadTheRecordAndRewriteTheState) {
  const double channels = 3 * 4 * 128;
  const double record = 4 * (128 * 4 + 128 * 2 + 4 + 128 * 4);
  const BenchWork kda = work_of(spec_of("kda_commit", "kimi-linear", 4, "3x5"));
  EXPECT_EQ(kda.bytes,
            15 * record + 3 * 2 * 4 * 65536.0 + 15 * channels * 2 + 3 * 2 * channels * 3 * 2);
  const BenchWork lightning = work_of(spec_of("lightning_commit", "minimax-01", 8, "2x4"));
  EXPECT_EQ(lightning.bytes, 8.0 * 8 * 2 * 256 + 2 * 2 * 8 * 65536.0);
}

TEST(Work, ARingWritesItsStateOnceInR) {
  BenchSpec spec = spec_of("lightning_decode_replay", "minimax-01", 8, "2x1");
  spec.ring_length = 4;
  // 1.5 records of k and v read, three tokens of four append one.
  EXPECT_EQ(work_of(spec).bytes,
            2.0 * 8 * (4 * 256 + 65536 * 1.25 + 4 * (1.5 + 0.75) * (128 + 128)));
  spec.ring_length = 1;
  EXPECT_EQ(work_of(spec).bytes, 2.0 * 8 * (4 * 256 + 65536 * 2));
  BenchSpec kda = spec_of("kda_decode_replay", "kimi-linear", 4, "2x1");
  kda.ring_length = 4;
  kda.ring_dtype = DType::kF16;
  // Keys are rewritten, and gamma is.
  EXPECT_EQ(work_of(kda).bytes,
            2.0 * 4 * (5 * 256 + 2 + 65536 * 1.25 + 2 * (3.75 + 2.25) * 128 + 2 * 512));
}

TEST(Work, SlotOperatorsMoveStateAndWindow) {
  const double slot = 4 * 65536 + 3 * 4 * 128 * 3 * 2;
  EXPECT_EQ(work_of(spec_of("state_clear", "kimi-linear", 4, "6x1")).bytes, 6 * slot);
  EXPECT_EQ(work_of(spec_of("state_copy", "kimi-linear", 4, "6x1")).bytes, 12 * slot);
}

TEST(Work, WhatIsReadAndWrittenIsTouchedOnce) {
  const BenchWork decode = work_of(spec_of("kda_decode", "kimi-linear", 12, "64x1"));
  EXPECT_EQ(decode.bytes - decode.touched, 64.0 * 12 * 65536);
  const BenchWork prefill = work_of(spec_of("kda_prefill", "kimi-linear", 4, "8x1024"));
  EXPECT_EQ(prefill.touched, prefill.bytes);
}

TEST(Work, StateDtypeCounts) {
  BenchSpec spec = spec_of("lightning_decode", "minimax-01", 8, "2x1");
  spec.state_dtype = DType::kF16;
  EXPECT_EQ(work_of(spec).bytes, 2.0 * 8 * (4 * 256 + 2 * 32768));
  spec.io_dtype = DType::kF32;
  EXPECT_EQ(work_of(spec).bytes, 2.0 * 8 * (4 * 512 + 2 * 32768));
}

TEST(Work, ConvolutionAndNorms) {
  const double channels = 3 * 4 * 128;
  const BenchWork prefill = work_of(spec_of("causal_conv1d_prefill", "kimi-linear", 4, "2x100"));
  EXPECT_EQ(prefill.bytes, 200 * channels * 4 + channels * 16 + 2 * channels * 3 * 2);
  EXPECT_EQ(prefill.operations, 2 * 4 * 200 * channels);
  const BenchWork update = work_of(spec_of("causal_conv1d_update", "kimi-linear", 4, "2x1"));
  EXPECT_EQ(update.bytes, 2 * channels * 4 + channels * 16 + 2 * 2 * channels * 3 * 2);
  const BenchWork gated = work_of(spec_of("gated_rms_norm", "kimi-linear", 4, "1x10"));
  EXPECT_EQ(gated.bytes, 10.0 * 4 * 128 * 6 + 128 * 4);
  EXPECT_EQ(gated.operations, 0.0);
  const BenchWork group = work_of(spec_of("group_rms_norm", "minimax-01", 4, "1x10"));
  EXPECT_EQ(group.bytes, 10.0 * 4 * 128 * 6 + 4 * 128 * 4);
}

TEST(Work, LayersCountNothingBetweenOperators) {
  const double channels = 3 * 4 * 128;
  const BenchWork kda = work_of(spec_of("kda_layer_decode", "kimi-linear", 4, "6x1"));
  const double tokens = 6 * (channels * 2 + 4 * (128 * 2 + 2) + 4 * 128 * 2 + 4 * 128 * 2);
  EXPECT_EQ(kda.bytes, tokens + 6 * 2 * (4.0 * 65536 + channels * 3 * 2) + channels * 16 + 512);
  const BenchWork lightning = work_of(spec_of("lightning_layer_extend", "minimax-01", 4, "1x64"));
  EXPECT_EQ(lightning.bytes, 64.0 * 4 * 5 * 256 + 4.0 * 65536 + 4 * 512);
}

TEST(Work, SlotBytesAreThoseOfThePool) {
  const double channels = 3 * 4 * 128;
  EXPECT_EQ(slot_bytes(spec_of("kda_decode", "kimi-linear", 4, "1x1")),
            static_cast<int64_t>(4 * 65536 + channels * 3 * 2));
}

TEST(Slots, RotateOverAtLeastTheBytesAskedFor) {
  EXPECT_EQ(rotating_slots(4, 100, 1000), 12);  // 3 calls of 400 bytes
  EXPECT_EQ(rotating_slots(4, 100, 1200), 12);
  EXPECT_EQ(rotating_slots(4, 100, 1201), 16);
  EXPECT_EQ(rotating_slots(4, 1000, 10), 4);
}

}  // namespace
}  // namespace linestate::cli
