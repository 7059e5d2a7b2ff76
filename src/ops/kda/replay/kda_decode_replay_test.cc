// Buffered decode against plain decode, with the whole protocol: step_begin, replay, fold.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/message.h"
#include "linestate/ops/replay_ring.h"
#include "ops/kda/kda_verify_case.h"

namespace linestate::testing {
namespace {

// N rows that decode for many steps, once through a ring and once plainly.
struct ReplayRun {
  KdaProblem problem;  // tokens of step s: [s * N, (s + 1) * N)
  KdaProblem plain;    // the same on its own f32 pool and f32 outputs
  std::vector<KdaRow> rows;
  int64_t R = 1;
  HostTensor keys, values, gamma, cursor, pending, flush, force;

  int64_t N() const { return static_cast<int64_t>(rows.size()); }
  ReplayRing ring() { return {keys, values, gamma}; }

  KdaReplayParams params(int64_t step) {
    KdaReplayParams p;
    problem.set_rows(rows);
    p.kda = slice_tokens(problem, step * N(), (step + 1) * N());
    p.ring = ring();
    p.pending = pending;
    p.flush = flush;
    return p;
  }
  std::string begin(const std::string& kernel) {
    problem.set_rows(rows);
    ReplayStepParams p;
    p.rows = problem.params().rows;
    p.force_flush = force.view();
    p.ring_length = R;
    p.cursor = cursor;
    p.pending = pending;
    p.flush = flush;
    return replay_step_begin(p, {}, kernel).to_string();
  }
  std::string step(int64_t s, const std::string& kernel, int threads = 1,
                   DeviceStatus* status = nullptr) {
    const std::string error = begin(kernel);
    if (error != "ok") return error;
    return run_sized(kda_decode_replay, kda_decode_replay_workspace_bytes, params(s), kernel,
                     threads, status);
  }
  std::string step_plain(int64_t s, const std::string& kernel) {
    plain.set_rows(rows);
    return run_kda(KdaPhase::kDecode, slice_tokens(plain, s * N(), (s + 1) * N()), kernel);
  }
  void advance() {
    for (KdaRow& row : rows) row.start += row.num_valid != 0 ? 1 : 0;
  }
  std::string fold(const std::string& kernel, const std::vector<int32_t>& slots) {
    const ReplayFoldLayer layer{problem.state, ring(), {}, 0};
    const HostTensor ids = i32_tensor(slots);
    return replay_fold({{&layer, 1}, ids, cursor}, {}, kernel).to_string();
  }
};

ReplayRun make_run(const KdaShape& shape, const std::vector<KdaRow>& rows, int64_t R, int64_t steps,
                   DType ring, uint64_t seed) {
  ReplayRun run;
  const auto N = static_cast<int64_t>(rows.size());
  run.problem = make_kda_problem(shape, steps * N, seed);
  run.plain = run.problem.clone();
  run.plain.state = cast_of(run.problem.state.view(), DType::kF32);
  run.plain.out = cast_of(run.problem.out.view(), DType::kF32);
  run.rows = rows;
  run.R = R;
  run.keys = HostTensor(ring, {shape.slots, shape.HV, R - 1, shape.K});
  run.values = HostTensor(ring, {shape.slots, shape.HV, R - 1, shape.V});
  run.gamma = HostTensor(DType::kF32, {shape.slots, shape.HV, shape.K});
  for (HostTensor* part : {&run.keys, &run.values, &run.gamma}) fill_nan(*part);
  run.cursor = HostTensor(DType::kI32, {shape.slots});
  run.pending = HostTensor(DType::kI32, {N});
  run.flush = HostTensor(DType::kU8, {N});
  return run;
}

KdaShape small_shape() {
  KdaShape shape;
  shape.H = 1;
  shape.HV = 2;
  shape.K = 32;
  shape.V = 16;
  return shape;
}

class KdaReplay : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, KdaReplay, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(KdaReplay, ARingOfOneIsPlainDecodeBitForBit) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    KdaShape shape = small_shape();
    shape.state = dtype;
    const std::vector<KdaRow> rows = {{3, 5, 1}, {0, 0, 1}, {-1, 2, 1}, {6, 0, 1, 0}, {2, 4, 1, 0}};
    ReplayRun run = make_run(shape, rows, 1, 6, DType::kF32, 201);
    run.plain.state = run.problem.state.clone();
    for (int64_t s = 0; s < 6; ++s) {
      ASSERT_EQ(run.step(s, GetParam()), "");
      ASSERT_EQ(run.step_plain(s, GetParam()), "");
      run.advance();
    }
    EXPECT_EQ(bit_difference(run.problem.out, run.plain.out), "");
    EXPECT_EQ(bit_difference(run.problem.state, run.plain.state), "");
  }
}

TEST_P(KdaReplay, ShortRunsAreDecode) {
  for (KdaGate gate : {KdaGate::kSoftplus, KdaGate::kBounded, KdaGate::kActivated}) {
    for (int64_t R : {2, 5, 64}) {
      KdaShape shape = small_shape();
      shape.gate_form = gate;
      shape.lower_bound = gate == KdaGate::kBounded ? -5.0f : 0.0f;
      const int64_t steps = R == 64 ? 70 : 13;
      ReplayRun run =
          make_run(shape, {{3, 5, 1}, {-1, 0, 1}, {6, 0, 1}}, R, steps, DType::kF32, 203);
      fill_nan(run.problem.state.view().select(0, 6));
      if (gate == KdaGate::kActivated) {
        fill_uniform(run.problem.gate, 204, -50.0, 0.0);
        fill_uniform(run.plain.gate, 204, -50.0, 0.0);
      }
      for (int64_t s = 0; s < steps; ++s) {
        ASSERT_EQ(run.step(s, GetParam()), "");
        ASSERT_EQ(run.step_plain(s, "ref"), "");
        run.advance();
      }
      EXPECT_LE(compare(run.problem.out, run.plain.out).rel, 1e-6) << R;
      for (int64_t slot : {3, 6}) EXPECT_EQ(run.cursor.at(slot), steps % R) << R;
      ASSERT_EQ(run.fold(GetParam(), {6, -1, 3, 99}), "ok");
      for (int64_t slot : {3, 6}) {
        EXPECT_EQ(run.cursor.at(slot), 0);
        EXPECT_LE(compare(run.problem.state.view().slice(0, slot, slot + 1),
                          run.plain.state.view().slice(0, slot, slot + 1))
                      .rel,
                  1e-6)
            << R;
      }
    }
  }
}

// Slow gates and a long sequence: what the ring's dtype costs. An f16 ring rounds its keys at every
// token, and a decay closer to one than half a unit in the last place is lost in them; its measured
// distance is 7e-4 here, below the 1e-3 of a plain f16 pool.
TEST_P(KdaReplay, LongRuns) {
  struct Setting {
    DType ring;
    double limit;
  };
  for (const Setting& setting : {Setting{DType::kF32, 5e-5}, Setting{DType::kF16, 1e-3}}) {
    KdaShape shape = small_shape();
    shape.gate_form = KdaGate::kActivated;
    constexpr int64_t kSteps = 2000;
    ReplayRun run = make_run(shape, {{3, 0, 1}}, 16, kSteps, setting.ring, 207);
    fill_uniform(run.problem.gate, 208, -0.004, 0.0);
    run.plain.gate = run.problem.gate.clone();
    for (int64_t s = 0; s < kSteps; ++s) {
      ASSERT_EQ(run.step(s, GetParam()), "");
      ASSERT_EQ(run.step_plain(s, "ref"), "");
      run.advance();
    }
    const double out = compare(run.problem.out, run.plain.out).rel;
    ASSERT_EQ(run.fold(GetParam(), {3}), "ok");
    const double state =
        compare(run.problem.state.view().slice(0, 3, 4), run.plain.state.view().slice(0, 3, 4)).rel;
    EXPECT_LE(out, setting.limit);
    EXPECT_LE(state, setting.limit);
    RecordProperty(concat(dtype_name(setting.ring), "_out"), concat(out));
    RecordProperty(concat(dtype_name(setting.ring), "_state"), concat(state));
  }
}

TEST_P(KdaReplay, ForcedFlushesAndFoldsInBetween) {
  ReplayRun run = make_run(small_shape(), {{3, 5, 1}, {5, 0, 1}}, 8, 30, DType::kF32, 209);
  Random random(4);
  run.force = HostTensor(DType::kU8, {2});
  for (int64_t s = 0; s < 30; ++s) {
    for (int64_t n = 0; n < 2; ++n) run.force.set(n, random.integer(0, 3) == 0 ? 1 : 0);
    ASSERT_EQ(run.step(s, GetParam()), "");
    for (int64_t n = 0; n < 2; ++n) {
      if (run.force.at(n) == 1) {
        EXPECT_EQ(run.flush.at(n), 1);
      }
    }
    ASSERT_EQ(run.step_plain(s, "ref"), "");
    run.advance();
    if (s % 11 == 10) {
      ASSERT_EQ(run.fold(GetParam(), {5}), "ok");
    }
  }
  ASSERT_EQ(run.fold(GetParam(), {3, 5}), "ok");
  EXPECT_LE(compare(run.problem.out, run.plain.out).rel, 1e-6);
  for (int64_t slot : {3, 5}) {
    EXPECT_LE(compare(run.problem.state.view().slice(0, slot, slot + 1),
                      run.plain.state.view().slice(0, slot, slot + 1))
                  .rel,
              1e-6);
  }
}

TEST_P(KdaReplay, PaddingTouchesNothingAndSkippedRowsKeepTheirRing) {
  const std::vector<KdaRow> rows = {{3, 5, 1}, {-1, 0, 1}, {2, 4, 1}, {99, 1, 1}, {6, 0, 1, 0}};
  ReplayRun run = make_run(small_shape(), rows, 4, 8, DType::kF16, 211);
  for (int64_t s = 0; s < 2; ++s) ASSERT_EQ(run.step(s, GetParam()), "");
  EXPECT_EQ(nonzero(run.problem.state.view().slice(0, 6, 7)), "");  // fresh without a token
  run.rows[2].num_valid = 0;
  const HostTensor keys = run.keys.clone();
  const HostTensor values = run.values.clone();
  const HostTensor gamma = run.gamma.clone();
  const HostTensor state = run.problem.state.clone();
  const HostTensor cursor = run.cursor.clone();
  for (int64_t s = 2; s < 5; ++s) {
    ASSERT_EQ(run.step(s, GetParam()), "");
    EXPECT_EQ(nonzero(run.problem.out.view().slice(0, s * 5 + 1, s * 5 + 5)), "");
  }
  for (int64_t slot : {0, 1, 2, 4, 5, 6, 7}) {
    const auto same = [slot](const HostTensor& a, const HostTensor& b) {
      return bit_difference(a.view().slice(0, slot, slot + 1), b.view().slice(0, slot, slot + 1));
    };
    EXPECT_EQ(same(run.keys, keys), "");
    EXPECT_EQ(same(run.values, values), "");
    EXPECT_EQ(same(run.gamma, gamma), "");
    EXPECT_EQ(same(run.problem.state, state), "");
    EXPECT_EQ(same(run.cursor, cursor), "");
  }
  EXPECT_EQ(run.cursor.at(2), 2);
  EXPECT_EQ(run.cursor.at(3), 1);
}

TEST_P(KdaReplay, ThreadsAndBatchMatesDoNotChangeBits) {
  const std::vector<KdaRow> rows = {{3, 5, 1}, {-1, 0, 1}, {2, 0, 1}};
  std::vector<HostTensor> out, state;
  for (int threads : {1, 2, 3}) {
    ReplayRun run = make_run(small_shape(), rows, 4, 6, DType::kF16, 213);
    for (int64_t s = 0; s < 6; ++s) {
      ASSERT_EQ(run.step(s, GetParam(), threads), "");
      run.advance();
    }
    out.push_back(run.problem.out.clone());
    state.push_back(run.problem.state.clone());
  }
  ReplayRun alone = make_run(small_shape(), {rows[0]}, 4, 18, DType::kF16, 213);
  for (int64_t s = 0; s < 6; ++s) {
    ASSERT_EQ(alone.begin(GetParam()), "ok");
    KdaReplayParams p = alone.params(0);
    p.kda = slice_tokens(alone.problem, s * 3, s * 3 + 1);
    ASSERT_EQ(run_sized(kda_decode_replay, kda_decode_replay_workspace_bytes, p, GetParam()), "");
    alone.advance();
    EXPECT_EQ(bit_difference(alone.problem.out.view().slice(0, s * 3, s * 3 + 1),
                             out[0].view().slice(0, s * 3, s * 3 + 1)),
              "");
  }
  for (size_t i : {1, 2}) {
    EXPECT_EQ(bit_difference(out[i], out[0]), "");
    EXPECT_EQ(bit_difference(state[i], state[0]), "");
  }
}

TEST_P(KdaReplay, OverflowOfAnF16RingIsReported) {
  ReplayRun run = make_run(small_shape(), {{3, 5, 1}, {4, 5, 1}}, 4, 2, DType::kF16, 215);
  fill_constant(run.problem.beta, 5.0);
  fill_constant(run.problem.v.view().slice(0, 1, 2), 3e6);
  DeviceStatus status;
  ASSERT_EQ(run.step(0, GetParam(), 1, &status), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kStateOverflow), 1);
  EXPECT_EQ(status.overflow_slot.load(), 4);
}

TEST(KdaReplayCheck, Refusals) {
  ReplayRun run = make_run(small_shape(), {{3, 5, 1}}, 4, 2, DType::kF32, 217);
  const auto refused = [&](const KdaReplayParams& p) {
    return run_sized(kda_decode_replay, kda_decode_replay_workspace_bytes, p, "auto");
  };
  run.pending.set(0, 3);
  EXPECT_NE(refused(run.params(0)).find("flush: expected 1 at row 0"), std::string::npos);
  run.pending.set(0, 4);
  EXPECT_NE(refused(run.params(0)).find("pending: expected 0 to 3"), std::string::npos);
  run.pending.set(0, 0);
  KdaReplayParams p = run.params(0);
  p.ring.gamma = {};
  EXPECT_NE(refused(p).find("ring.gamma: expected shape"), std::string::npos);
  p = run.params(0);
  p.ring.values.dtype = DType::kF16;
  EXPECT_NE(refused(p).find("ring.values: expected dtype f32"), std::string::npos);
  p = run.params(0);
  p.ring.keys.dtype = p.ring.values.dtype = DType::kBF16;
  EXPECT_NE(refused(p).find("ring.keys: expected dtype f32 or f16"), std::string::npos);
  p = run.params(0);
  p.ring.gamma = run.problem.dt_bias.view().split(0, 2);
  p.ring.gamma.shape[0] = 8;
  p.ring.gamma.stride[0] = 0;
  EXPECT_NE(refused(p).find("ring.gamma: expected strides"), std::string::npos);
}

}  // namespace
}  // namespace linestate::testing
