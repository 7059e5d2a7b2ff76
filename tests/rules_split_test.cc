// Rules 1, 2, 6 and 11: however a sequence is cut into prefills, decodes and verified drafts, its
// outputs, state and window are those of the whole. Every dtype; bits where OPS promises bits: with
// an f32 pool anywhere on `ref`, at cuts on the grid on `cpu`.
#include <map>

#include "tests/op_probe_case.h"

namespace linestate::testing {
namespace {

enum class Mode { kExtend, kDecode, kVerify };
struct Piece {
  Mode mode = Mode::kExtend;
  int64_t begin = 0;
  int64_t end = 0;
};
using Cut = std::vector<Piece>;

constexpr int64_t kTokens = 150;

/// A sequence of one operator family: T tokens in slot 1, from an empty or a dirty slot.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual std::string run(const Piece& piece, const std::string& kernel) = 0;
  virtual HostTensor& out() = 0;
  virtual HostTensor& pool() = 0;
};

class KdaSequence : public Sequence {
 public:
  KdaSequence(DType io, DType state, DType out, KdaGate gate) {
    KdaShape shape = small_kda_shape();
    shape.H = 1;
    shape.io = io;
    shape.out = out;
    shape.state = state;
    shape.gate_form = gate;
    if (gate != KdaGate::kBounded) shape.lower_bound = 0.0f;
    shape.slots = 2;
    problem_ = make_kda_problem(shape, kTokens, 60);
    fill_nan(problem_.state);
  }
  std::string run(const Piece& piece, const std::string& kernel) override {
    const auto tokens = static_cast<int32_t>(piece.end - piece.begin);
    problem_.set_rows({{1, piece.begin, tokens}});
    const KdaParams params = slice_tokens(problem_, piece.begin, piece.end);
    if (piece.mode == Mode::kExtend) return run_kda(KdaPhase::kPrefill, params, kernel);
    if (piece.mode == Mode::kDecode) return run_kda(KdaPhase::kDecode, params, kernel);
    const KdaShape& s = problem_.shape;
    HostTensor u(DType::kF32, {tokens, s.HV, s.V}), k(s.io, {tokens, s.H, s.K});
    HostTensor norm(DType::kF32, {tokens, s.H}), alpha(DType::kF32, {tokens, s.HV, s.K});
    const KdaRecord record{u, k, norm, alpha};
    const KdaVerifyParams verify{params, {}, record};
    std::string error = call_op(kda_verify, kda_verify_workspace_bytes, verify, kernel);
    const HostTensor accepted = i32_tensor({tokens - 1});
    KdaCommitParams commit;
    commit.rows = params.rows;
    commit.accepted_node = accepted;
    commit.record = record;
    commit.state = problem_.state;
    if (error.empty()) error = call_op(kda_commit, kda_commit_workspace_bytes, commit, kernel);
    return error;
  }
  HostTensor& out() override { return problem_.out; }
  HostTensor& pool() override { return problem_.state; }

 private:
  KdaProblem problem_;
};

class LightningSequence : public Sequence {
 public:
  LightningSequence(DType io, DType state, DType out) : base_(shape_of(io, state, out)) {
    base_.bind();
    fill_nan(base_.state);
  }
  std::string run(const Piece& piece, const std::string& kernel) override {
    const auto tokens = static_cast<int32_t>(piece.end - piece.begin);
    const HostTensor slot = i32_tensor({1}), start = i64_tensor({piece.begin});
    const HostTensor offsets = i32_tensor({0, tokens}), accepted = i32_tensor({tokens - 1});
    LightningParams params = base_.params;
    params.rows = {slot, offsets, start, {}};
    for (ConstTensorView* t : {&params.q, &params.k, &params.v}) {
      *t = t->slice(0, piece.begin, piece.end);
    }
    params.out = params.out.slice(0, piece.begin, piece.end);
    if (piece.mode == Mode::kExtend) {
      return call_op(lightning_prefill, lightning_prefill_workspace_bytes, params, kernel);
    }
    if (piece.mode == Mode::kDecode) {
      return call_op(lightning_decode, lightning_decode_workspace_bytes, params, kernel);
    }
    HostTensor k = copy_of(params.k), v = copy_of(params.v);
    fill_nan(k);
    fill_nan(v);
    const LightningVerifyParams verify{params, {}, {k, v}};
    const std::string error =
        call_op(lightning_verify, lightning_verify_workspace_bytes, verify, kernel);
    LightningCommitParams commit;
    commit.rows = params.rows;
    commit.accepted_node = accepted;
    commit.record = {k, v};
    commit.slopes = base_.slopes;
    commit.state = base_.state;
    if (!error.empty()) return error;
    return call_op(lightning_commit, lightning_commit_workspace_bytes, commit, kernel);
  }
  HostTensor& out() override { return base_.out; }
  HostTensor& pool() override { return base_.state; }

 private:
  static LightningShape shape_of(DType io, DType state, DType out) {
    LightningShape shape;
    shape.rows = {{1, 0, static_cast<int32_t>(kTokens)}};
    shape.dim = 32;
    shape.slots = 2;
    shape.io = io;
    shape.out = out;
    shape.state = state;
    return shape;
  }
  LightningCase base_;
};

/// Commit of the convolution goes with the state's commit, so that drafts move both.
class ConvSequence : public Sequence {
 public:
  ConvSequence(DType io, DType out) : c_(shape_of(io, out), {row_of(kTokens)}) {
    fill_nan(c_.window);
  }
  std::string run(const Piece& piece, const std::string& kernel) override {
    const auto tokens = static_cast<int32_t>(piece.end - piece.begin);
    const HostTensor start = i64_tensor({piece.begin}), offsets = i32_tensor({0, tokens});
    CausalConv1dParams params = c_.params();
    params.rows = {c_.slot, offsets, start, {}};
    params.x = params.x.slice(0, piece.begin, piece.end);
    params.out = params.out.slice(0, piece.begin, piece.end);
    if (piece.mode == Mode::kExtend) {
      return call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, params, kernel);
    }
    if (piece.mode == Mode::kDecode) {
      return call_op(causal_conv1d_update, causal_conv1d_update_workspace_bytes, params, kernel);
    }
    const CausalConv1dVerifyParams verify{params, {}};
    const std::string error =
        call_op(causal_conv1d_verify, causal_conv1d_verify_workspace_bytes, verify, kernel);
    return error.empty() ? commit_window(params, tokens, kernel) : error;
  }
  HostTensor& out() override { return c_.out; }
  HostTensor& pool() override { return c_.window; }

 private:
  static ConvShape shape_of(DType io, DType out) {
    ConvShape shape;
    shape.channels = 20;
    shape.slots = 2;
    shape.x = shape.window = io;
    shape.out = out;
    return shape;
  }
  static Row row_of(int64_t tokens) {
    return {1, RowKind::kExtend, 0, static_cast<int32_t>(tokens), -1, -1};
  }
  std::string commit_window(const CausalConv1dParams& params, int32_t tokens,
                            const std::string& kernel) {
    HostTensor state(DType::kF32, {2, 1, 16, 16}), u(DType::kF32, {tokens, 1, 16});
    HostTensor k(DType::kF32, {tokens, 1, 16}), norm(DType::kF32, {tokens, 1});
    HostTensor alpha(DType::kF32, {tokens, 1, 16});
    const HostTensor accepted = i32_tensor({tokens - 1});
    KdaCommitParams commit;
    commit.rows = params.rows;
    commit.accepted_node = accepted;
    commit.record = {u, k, norm, alpha};
    commit.conv_x = params.x;
    commit.state = state;
    commit.window = c_.window;
    return call_op(kda_commit, kda_commit_workspace_bytes, commit, kernel);
  }
  ConvCase c_;
};

struct Family {
  const char* name;
  std::unique_ptr<Sequence> (*make)(DType io, DType state, DType out);
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

template <KdaGate kGate>
std::unique_ptr<Sequence> make_kda(DType io, DType state, DType out) {
  return std::make_unique<KdaSequence>(io, state, out, kGate);
}
std::unique_ptr<Sequence> make_lightning(DType io, DType state, DType out) {
  return std::make_unique<LightningSequence>(io, state, out);
}
std::unique_ptr<Sequence> make_conv(DType io, DType, DType out) {
  return std::make_unique<ConvSequence>(io, out);
}

class RulesSplit : public ::testing::TestWithParam<std::tuple<Family, std::string>> {
 protected:
  const std::string& kernel() const { return std::get<1>(GetParam()); }
  bool conv() const { return std::string(std::get<0>(GetParam()).name) == "conv"; }

  std::unique_ptr<Sequence> run(const Cut& cut, DType io, DType state, DType out) const {
    std::unique_ptr<Sequence> sequence = std::get<0>(GetParam()).make(io, state, out);
    for (const Piece& piece : cut) EXPECT_EQ(sequence->run(piece, kernel()), "");
    return sequence;
  }
  static void expect_bits(Sequence& a, Sequence& b, const std::string& what) {
    EXPECT_EQ(bit_difference(a.out(), b.out()), "") << what;
    EXPECT_EQ(bit_difference(pool_slot(a.pool(), 1), pool_slot(b.pool(), 1)), "") << what;
  }
  static void expect_near(Sequence& a, Sequence& b, const std::string& what) {
    expect_close(a.out(), b.out(), 1e-6, what);
    EXPECT_LE(compare(pool_slot(a.pool(), 1), pool_slot(b.pool(), 1)).rel, 5e-7) << what;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Families, RulesSplit,
    ::testing::Combine(::testing::Values(Family{"conv", make_conv},
                                         Family{"kda_bounded", make_kda<KdaGate::kBounded>},
                                         Family{"kda_softplus", make_kda<KdaGate::kSoftplus>},
                                         Family{"kda_activated", make_kda<KdaGate::kActivated>},
                                         Family{"lightning", make_lightning}),
                       ::testing::Values("cpu", "ref")),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
    });

const std::vector<DType> kIo = {DType::kF32, DType::kBF16, DType::kF16};

Cut whole() { return {{Mode::kExtend, 0, kTokens}}; }

TEST_P(RulesSplit, Rule06_CutsOnTheGrid) {
  for (const DType io : kIo) {
    const auto expected = run(whole(), io, DType::kF32, io);
    for (const Cut& cut :
         {Cut{{Mode::kExtend, 0, 64}, {Mode::kExtend, 64, kTokens}},
          Cut{{Mode::kExtend, 0, 64}, {Mode::kExtend, 64, 128}, {Mode::kExtend, 128, kTokens}},
          Cut{{Mode::kExtend, 0, 0},
              {Mode::kExtend, 0, 128},
              {Mode::kExtend, 128, 128},
              {Mode::kExtend, 128, kTokens}}}) {
      const auto pieces = run(cut, io, DType::kF32, io);
      expect_bits(*pieces, *expected, std::string(dtype_name(io)));
    }
  }
}

TEST_P(RulesSplit, Rule06_CutsAnywhereIntoAnyMode) {
  Random random(61);
  for (const DType io : kIo) {
    // Without promised bits outputs stay in f32, so that the f32 floor judges them.
    const bool bits = kernel() == "ref" || conv();
    const DType out = bits ? io : DType::kF32;
    const auto expected = run(whole(), io, DType::kF32, out);
    for (int round = 0; round < 3; ++round) {
      Cut cut;
      for (int64_t at = 0; at < kTokens;) {
        const auto mode = static_cast<Mode>(random.integer(0, 2));
        const int64_t most = mode == Mode::kDecode ? 1 : mode == Mode::kVerify ? 8 : 40;
        const int64_t end = std::min(kTokens, at + random.integer(1, most));
        cut.push_back({mode, at, end});
        at = end;
      }
      const auto pieces = run(cut, io, DType::kF32, out);
      if (bits) {
        expect_bits(*pieces, *expected, std::string(dtype_name(io)));
      } else {
        expect_near(*pieces, *expected, std::string(dtype_name(io)));
      }
    }
  }
}

// A pool of 16 bits rounds at the end of a call, so the same cut gives the same bits, and every
// mode of one token the same value.
TEST_P(RulesSplit, Rule06_NarrowPoolsRoundOnceACall) {
  for (const DType state : {DType::kBF16, DType::kF16}) {
    for (const DType io : {state, DType::kF32}) {
      Cut decodes{{Mode::kExtend, 0, 140}}, extends = decodes, drafts = decodes;
      const int64_t last = kernel() == "ref" ? kTokens : 141;
      for (int64_t t = 140; t < last; ++t) {
        decodes.push_back({Mode::kDecode, t, t + 1});
        extends.push_back({Mode::kExtend, t, t + 1});
        drafts.push_back({Mode::kVerify, t, t + 1});
      }
      const auto expected = run(decodes, io, state, io);
      for (const Cut& cut : {extends, drafts}) {
        const auto other = run(cut, io, state, io);
        if (kernel() == "ref" || conv()) {
          expect_bits(*other, *expected, std::string(dtype_name(state)));
        } else {
          const ConstTensorView got = pool_slot(other->pool(), 1);
          EXPECT_LE(compare(got, pool_slot(expected->pool(), 1)).rel, 1e-3) << "one call";
        }
      }
    }
  }
}

}  // namespace
}  // namespace linestate::testing
