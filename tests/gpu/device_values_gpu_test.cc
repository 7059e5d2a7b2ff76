// What only a device can meet: values that the host never looked at, pools and grids larger than a
// 32-bit offset or a grid dimension reaches.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"
#include "ops/kda/verify/kda_verify_kernels.h"
#include "ops/state_ops/copy/state_copy_kernels.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"
#include "tests/gpu/mirrored_rows_fixture.h"

namespace linestate::testing {
namespace {

/// The cuda row, without the checks of the host's values that a call on the CPU begins with.
template <typename Params>
std::string run_unchecked(const OpTable<Params>& table, const Params& params,
                          DeviceStatus* status) {
  ExecContext context;
  context.status = status;
  const Status result = MirroredCall<Params>(table, params, context).run();
  return result.ok() ? "" : result.to_string();
}

HostTensor out_of(const KdaProblem& problem, int64_t begin, int64_t end) {
  return copy_of(problem.out.view().slice(0, begin, end));
}

TEST(DeviceValues, SlotsOutOfRangeAreFlaggedPadding) {
  KdaProblem problem = make_kda_problem({}, 4, 1);
  problem.set_rows({{1, 5, 1}, {99, 5, 1}, {-7, 5, 1}, {8, 5, 1}});
  KdaProblem sound = problem.clone();
  sound.set_rows({{1, 5, 1}, {-1, 5, 1}, {-1, 5, 1}, {-1, 5, 1}});
  DeviceStatus status;
  EXPECT_EQ(run_unchecked(kda_decode_table(), problem.params(), &status), "");
  EXPECT_EQ(run_unchecked(kda_decode_table(), sound.params(), nullptr), "");
  EXPECT_EQ(status.describe(), "slot out of range, row treated as padding, first row 1\n");
  EXPECT_EQ(bit_difference(problem.state, sound.state), "");
  EXPECT_EQ(bit_difference(problem.out, sound.out), "");
}

TEST(DeviceValues, RowsThatShareASlotAreFlagged) {
  KdaProblem problem = make_kda_problem({}, 4, 1);
  problem.set_rows({{1, 5, 1}, {-1, 5, 1}, {3, 5, 1}, {-1, 5, 1}});  // padding shares nothing
  problem.num_valid = i32_tensor({0, 0, 0, 0});  // or two rows race, and bits differ
  DeviceStatus status;
  EXPECT_EQ(run_unchecked(kda_decode_table(), problem.params(), &status), "");
  EXPECT_EQ(status.describe(), "");
  problem.set_rows({{1, 5, 1}, {2, 5, 1}, {3, 5, 1}, {2, 5, 1}});
  problem.num_valid = i32_tensor({0, 0, 0, 0});
  EXPECT_EQ(run_unchecked(kda_decode_table(), problem.params(), &status), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kDuplicateSlot), 3);
}

TEST(DeviceValues, ManyRowsAreComparedWithAllBefore) {
  constexpr int32_t kRows = 700;  // three blocks
  HostTensor plane(DType::kF32, {2 * kRows, 4});
  TensorView planes[] = {plane};
  std::vector<int32_t> from, to;
  for (int32_t i = 0; i < kRows; ++i) {
    from.push_back(i);
    to.push_back(kRows + i);
  }
  const ConstTensorView sources[] = {plane};
  for (const auto& [at, other] : {std::pair<int, int>{699, 0}, {300, 299}, {600, 256}}) {
    std::vector<int32_t> targets = to;
    DeviceStatus status;
    HostTensor src = i32_tensor(from), dst = i32_tensor(targets);
    EXPECT_EQ(
        run_unchecked(state_copy_table(), StateCopyParams{sources, planes, src, dst}, &status), "");
    EXPECT_EQ(status.describe(), "");
    targets[static_cast<size_t>(at)] = targets[static_cast<size_t>(other)];
    dst = i32_tensor(targets);
    EXPECT_EQ(
        run_unchecked(state_copy_table(), StateCopyParams{sources, planes, src, dst}, &status),
        "");  // all zeros: whoever came last wrote the same
    EXPECT_EQ(status.row_of(DeviceFlag::kDuplicateSlot), at);
  }
}

TEST(DeviceValues, ASnapshotIntoALiveSlotIsFlagged) {
  for (const int32_t target : {4, 2}) {  // somebody's, then a row's
    KdaProblem problem = make_kda_problem({}, 12, 2);
    problem.set_rows({{1, 5, 4}, {2, 5, 4}, {3, 5, 4}});
    problem.num_valid = i32_tensor({0, 0, 0});
    KdaParams params = problem.params();
    const HostTensor row = i32_tensor({0, 1}), slot = i32_tensor({5, target});
    const HostTensor position = i64_tensor({7, 8});
    params.snapshots = {row, position, slot};
    DeviceStatus status;
    EXPECT_EQ(run_unchecked(kda_prefill_table(), params, &status), "");
    EXPECT_EQ(status.raised(DeviceFlag::kDuplicateSlot), target == 2);
    EXPECT_EQ(status.row_of(DeviceFlag::kDuplicateSlot), target == 2 ? 3 + 1 : -1);
  }
}

TEST(DeviceValues, CheckedSlotsAreNotLookedAtAgain) {
  KdaProblem problem = make_kda_problem({}, 2, 1);
  problem.set_rows({{2, 5, 1}, {2, 5, 1}});
  problem.num_valid = i32_tensor({0, 0});
  ExecContext context;
  DeviceStatus status;
  context.status = &status;
  context.slots_checked = true;
  EXPECT_TRUE(MirroredCall<KdaParams>(kda_decode_table(), problem.params(), context).run().ok());
  EXPECT_EQ(status.describe(), "");
}

TEST(DeviceValues, BadOffsetsSkipTheirRows) {
  KdaProblem problem = make_kda_problem({}, 12, 2);
  problem.set_rows({{1, 5, 4}, {2, 5, 4}, {3, 5, 4}});
  problem.num_valid = i32_tensor({4, 5, -1});
  const KdaProblem before = problem.clone();
  KdaProblem sound = problem.clone();
  sound.num_valid = i32_tensor({4, 0, 0});
  DeviceStatus status;
  EXPECT_EQ(run_unchecked(kda_prefill_table(), problem.params(), &status), "");
  EXPECT_EQ(run_unchecked(kda_prefill_table(), sound.params(), nullptr), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kBadOffsets), 1);
  EXPECT_EQ(bit_difference(problem.state, sound.state), "");
  EXPECT_EQ(bit_difference(problem.out, sound.out), "");

  problem = before.clone();
  problem.num_valid = HostTensor();
  problem.query_start_loc = i32_tensor({0, 4, 2, 400});
  status.reset();
  EXPECT_EQ(run_unchecked(kda_prefill_table(), problem.params(), &status), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kBadOffsets), 1);
  EXPECT_EQ(bit_difference(out_of(problem, 0, 4), out_of(sound, 0, 4)), "");
  for (int64_t slot : {2, 3}) {
    EXPECT_EQ(
        bit_difference(problem.state.view().select(0, slot), before.state.view().select(0, slot)),
        "");
  }
}

struct Drafts {
  KdaProblem problem;
  HostTensor parent, accepted, u, k, norm, alpha;

  explicit Drafts(const std::vector<int32_t>& parents)
      : problem(make_kda_problem({}, static_cast<int64_t>(parents.size()), 3)),
        parent(i32_tensor(parents)),
        u(DType::kF32, problem.v.shape()),
        k(DType::kF32, problem.k.shape()),
        norm(DType::kF32, {problem.tokens(), problem.shape.H}),
        alpha(DType::kF32, problem.gate.shape()) {
    problem.set_rows({{1, 5, static_cast<int32_t>(parents.size())}});
  }
  KdaRecord record() { return {u, k, norm, alpha}; }
  KdaVerifyParams verify() { return {problem.params(), parent, record()}; }
  KdaCommitParams commit() {
    KdaCommitParams p;
    p.rows = problem.params().rows;
    p.parent = parent;
    p.accepted_node = accepted;
    p.record = record();
    p.state = problem.state;
    return p;
  }
};

TEST(DeviceValues, BadParentsAreFlaggedAndInert) {
  Drafts drafts({-1, 0, 2, 2, 1});  // node 2 names itself, node 3 follows it
  DeviceStatus status;
  EXPECT_EQ(run_unchecked(kda_verify_table(), drafts.verify(), &status), "");
  EXPECT_TRUE(status.raised(DeviceFlag::kBadParent));
  EXPECT_EQ(nonzero(out_of(drafts.problem, 2, 4)), "");
  EXPECT_NE(nonzero(out_of(drafts.problem, 4, 5)), "");
  Drafts sound({-1, 0, -1, 2, 1});
  EXPECT_EQ(run_unchecked(kda_verify_table(), sound.verify(), nullptr), "");
  EXPECT_EQ(bit_difference(drafts.problem.out, sound.problem.out), "");
}

TEST(DeviceValues, BadAcceptedNodesCommitNothing) {
  for (const int32_t node : {3, -2, 2}) {  // behind the row, below none, inert
    Drafts drafts({-1, 0, -1});
    ASSERT_EQ(run_unchecked(kda_verify_table(), drafts.verify(), nullptr), "");
    const HostTensor before = drafts.problem.state.clone();
    drafts.accepted = i32_tensor({node});
    DeviceStatus status;
    EXPECT_EQ(run_unchecked(kda_commit_table(), drafts.commit(), &status), "");
    EXPECT_EQ(status.row_of(DeviceFlag::kBadAcceptedNode), 0) << node;
    EXPECT_EQ(bit_difference(drafts.problem.state, before), "");
  }
}

TEST(DeviceValues, PrefillHasTheBitsOfItsDecodes) {
  for (const int64_t K : {48, 128, 160}) {
    constexpr int64_t kTokens = 37;
    KdaShape shape;
    shape.HV = 4;
    shape.K = K;
    shape.V = 80;
    shape.io = DType::kBF16;
    shape.gate_dtype = DType::kBF16;
    KdaProblem whole = make_kda_problem(shape, kTokens, 9);
    whole.set_rows({{3, 0, kTokens}});
    KdaProblem steps = whole.clone();
    ASSERT_EQ(run_kda(KdaPhase::kPrefill, whole.params(), "cpu"), "");
    for (int64_t t = 0; t < kTokens; ++t) {
      steps.set_rows({{3, t, 1}});
      KdaParams p = steps.params();
      for (ConstTensorView* view : {&p.q, &p.k, &p.v, &p.gate, &p.beta}) {
        *view = view->slice(0, t, t + 1);
      }
      p.out = p.out.slice(0, t, t + 1);
      ASSERT_EQ(run_kda(KdaPhase::kDecode, p, "cpu"), "");
    }
    EXPECT_EQ(bit_difference(steps.state, whole.state), "") << K;
    EXPECT_EQ(bit_difference(steps.out, whole.out), "") << K;
  }
}

TEST(DeviceValues, MoreRowsTimesHeadsThanAGridDimension) {
  KdaShape shape;
  shape.H = shape.HV = 2;
  shape.K = shape.V = 16;
  constexpr int32_t kRows = 70000;
  shape.slots = kRows;
  KdaProblem problem = make_kda_problem(shape, kRows, 4);
  std::vector<KdaRow> rows;
  for (int32_t n = 0; n < kRows; ++n) rows.push_back({kRows - 1 - n, n % 3, 1});
  problem.set_rows(rows);
  EXPECT_EQ(check_kda_against_ref(KdaPhase::kDecode, problem, "cpu"), "");
}

// A layer of 4 200 slots of 2 MiB: the last ones lie more than 2^31 elements behind the first.
TEST(DeviceValues, ASlotBeyond31Bits) {
  KdaShape shape;
  shape.H = shape.HV = 32;
  shape.K = shape.V = 128;
  shape.slots = 1;
  KdaProblem problem = make_kda_problem(shape, 1, 5);
  problem.set_rows({{0, 5, 1}});
  KdaProblem want = problem.clone();
  ASSERT_EQ(run_kda(KdaPhase::kDecode, want.params(), "cpu"), "");

  constexpr int64_t kSlots = 4200;
  constexpr int64_t kSlot = 4150;
  const int64_t bytes = problem.state.bytes();
  Result<DeviceMemory> pool = DeviceMemory::allocate(kGpu, kSlots * bytes);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  char* slot = static_cast<char*>(pool->data()) + kSlot * bytes;
  ASSERT_TRUE(copy_bytes({slot, kGpu}, {problem.state.data(), {}}, bytes, test_stream()).ok());
  problem.slot = i32_tensor({static_cast<int32_t>(kSlot)});
  OwnedParams<KdaParams> params(problem.params());
  DeviceMirror mirror(kGpu, test_stream());
  for_each_view(params, [&](auto& view) { mirror.add(view, true); });
  ASSERT_TRUE(mirror.upload().ok());
  for_each_view(params, [&](auto& view) { view = mirror.map(view); });
  params.value.state.data = pool->data();
  params.value.state.shape[0] = kSlots;
  ExecContext context;
  context.device = kGpu;
  context.stream = test_stream();
  ASSERT_EQ(kda_decode(params.value, context, "cuda").to_string(), "ok");
  const Result<std::vector<char>> result = mirror.download();
  ASSERT_TRUE(result.ok());
  mirror.write_back(*result);
  ASSERT_TRUE(copy_bytes({problem.state.data(), {}}, {slot, kGpu}, bytes, test_stream()).ok());
  EXPECT_EQ(bit_difference(problem.out, want.out), "");
  EXPECT_EQ(bit_difference(problem.state, want.state), "");
}

TEST(DeviceValues, ConvolutionOf60000Tokens) {
  constexpr int64_t kTokens = 60000;
  constexpr int64_t kChannels = 132;
  HostTensor x(DType::kBF16, {kTokens, kChannels});
  HostTensor weight(DType::kF32, {kChannels, 4});
  fill_normal(x, 6);
  fill_normal(weight, 7);
  const HostTensor slot = i32_tensor({1, 0});
  const HostTensor loc = i32_tensor({0, 1, kTokens});
  const HostTensor start = i32_tensor({0, 9});
  HostTensor windows[2] = {HostTensor(DType::kBF16, {2, kChannels, 3}), HostTensor()};
  fill_normal(windows[0], 8);
  windows[1] = windows[0].clone();
  HostTensor outs[2] = {HostTensor(DType::kBF16, {kTokens, kChannels}),
                        HostTensor(DType::kBF16, {kTokens, kChannels})};
  for (int i = 0; i < 2; ++i) {
    CausalConv1dParams p;
    p.rows = {slot.view(), loc.view(), start.view(), {}};
    p.x = x;
    p.weight = weight;
    p.window = windows[i];
    p.out = outs[i];
    ASSERT_EQ(causal_conv1d_prefill(p, {}, i == 0 ? "cpu" : "ref").to_string(), "ok");
  }
  EXPECT_EQ(bit_difference(outs[0], outs[1]), "");
  EXPECT_EQ(bit_difference(windows[0], windows[1]), "");
}

}  // namespace
}  // namespace linestate::testing
