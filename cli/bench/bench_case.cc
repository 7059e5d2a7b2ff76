#include "cli/bench/bench_case.h"

#include <charconv>

#include "linestate/state_pool.h"

namespace linestate::cli {
namespace {

// Input lengths of the shipped trace, in its order.
constexpr int32_t kMixed[] = {915,  1053, 1477, 2293, 1902, 1066, 898,  898,
                              1424, 954,  1729, 1309, 1902, 1434, 1546, 1641};
constexpr int32_t kList6[] = {1300, 547, 2048, 963, 271, 3063};
// 64 lengths from 1 to 512 of the measurements in bench/results, so that rows compare.
constexpr int32_t kMix64[] = {452, 120, 8,   93,  36,  86,  101, 364, 243, 18,  32,  17,  355,
                              496, 475, 153, 94,  188, 118, 15,  499, 256, 67,  478, 71,  92,
                              48,  277, 65,  310, 493, 364, 273, 256, 205, 465, 20,  73,  6,
                              342, 148, 485, 387, 172, 56,  79,  509, 168, 78,  221, 148, 28,
                              355, 114, 145, 313, 466, 41,  427, 284, 42,  182, 279, 159};
constexpr int64_t kMostRows = 4096;
constexpr int64_t kMostTokens = int64_t{1} << 20;

bool parse_count(std::string_view text, int64_t high, int64_t& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= 1 && value <= high;
}

double bytes_of(DType dtype) { return static_cast<double>(dtype_bytes(dtype)); }

// Sizes as doubles: what follows is arithmetic on them.
struct Sizes {
  double rows, tokens, H, HV, K, V, W, channels, io, state;

  explicit Sizes(const BenchSpec& spec)
      : rows(static_cast<double>(spec.layout.rows())),
        tokens(static_cast<double>(spec.layout.total())),
        H(static_cast<double>(spec.layer.heads.num_heads)),
        HV(static_cast<double>(spec.layer.heads.num_value_heads)),
        K(static_cast<double>(spec.layer.heads.k_dim)),
        V(static_cast<double>(spec.layer.heads.v_dim)),
        W(static_cast<double>(spec.layer.conv_width)),
        channels(static_cast<double>(spec.layer.conv_channels())),
        io(bytes_of(spec.io_dtype)),
        state(bytes_of(spec.state_dtype)) {}

  double out() const { return tokens * HV * V * io; }
  double kda_gates() const { return tokens * (HV * K + HV) * io; }
  double qkv() const { return tokens * (2 * H * K + HV * V) * io; }
  double states() const { return rows * HV * K * V * state; }
  double windows() const { return rows * channels * (W - 1) * io; }
  double conv_weights() const { return channels * W * 4; }
  double kda_record() const { return tokens * (HV * V * 4 + H * K * io + H * 4 + HV * K * 4); }
  double lightning_record() const { return tokens * 2 * H * K * io; }
};

double passes(BenchPhase phase) { return phase == BenchPhase::kStep ? 2.0 : 1.0; }

void add_kda(const Sizes& s, BenchPhase phase, BenchWork& work) {
  work.bytes = s.qkv() + s.kda_gates() + s.out() + passes(phase) * s.states();
  if (phase == BenchPhase::kDraft) work.bytes += s.kda_record();
  work.operations = 6 * s.tokens * s.HV * s.K * s.V;
}

void add_lightning(const Sizes& s, BenchPhase phase, BenchWork& work) {
  work.bytes = s.qkv() + s.out() + passes(phase) * s.states();
  if (phase == BenchPhase::kDraft) work.bytes += s.lightning_record();
  work.operations = 4 * s.tokens * s.HV * s.K * s.V;
}

void add_conv(const Sizes& s, BenchPhase phase, BenchWork& work) {
  work.bytes = 2 * s.tokens * s.channels * s.io + s.conv_weights() + passes(phase) * s.windows();
  work.operations = 2 * s.W * s.tokens * s.channels;
}

// Every node accepted: the record once, state and windows read and written.
void add_commit(const Sizes& s, const BenchOp& op, BenchWork& work) {
  if (op.layer == LayerKind::kLightning) {
    work.bytes = s.lightning_record() + 2 * s.states();
    work.operations = 4 * s.tokens * s.HV * s.K * s.V;
    return;
  }
  work.bytes = s.kda_record() + 2 * s.states() + s.tokens * s.channels * s.io + 2 * s.windows();
  work.operations = 4 * s.tokens * s.HV * s.K * s.V;
}

// Rows are at all places of the ring: one in R writes its state, the mean row has (R - 1) / 2
// records. KDA rewrites their keys and its gamma; Lightning only appends.
void add_ring(const Sizes& s, const BenchSpec& spec, BenchWork& work) {
  const auto length = static_cast<double>(spec.ring_length);
  const double records = (length - 1) / 2, element = bytes_of(spec.ring_dtype);
  const bool kda = spec.op.layer == LayerKind::kKda;
  if (kda) {
    add_kda(s, BenchPhase::kDraft, work);
    work.bytes -= s.kda_record();
  } else {
    add_lightning(s, BenchPhase::kDraft, work);
    work.bytes -= s.lightning_record();
  }
  work.bytes += s.states() / length;
  const double appended = (length - 1) / length;
  const double keys = kda ? 2 * records + appended : records + appended;
  work.bytes += s.rows * s.HV * element * (keys * s.K + (records + appended) * s.V);
  if (kda) work.bytes += 2 * s.rows * s.HV * s.K * 4;
}

// Layers: what goes in and out, nothing of what their operators hand on.
void add_layer(const Sizes& s, const BenchOp& op, BenchWork& work) {
  const double norm_gate = s.out();
  if (op.layer == LayerKind::kLightning) {
    add_lightning(s, op.phase, work);
    work.bytes += norm_gate + s.HV * s.V * 4;
    return;
  }
  add_kda(s, op.phase, work);
  work.bytes += norm_gate + s.V * 4 + s.conv_weights() + passes(op.phase) * s.windows();
  if (op.phase == BenchPhase::kDraft) work.bytes += s.tokens * s.channels * s.io;  // record_x
  work.operations += 2 * s.W * s.tokens * s.channels;
}

}  // namespace

int64_t RowLayout::total() const {
  int64_t sum = 0;
  for (const int32_t count : tokens) sum += count;
  return sum;
}

RowLayout uniform_layout(int64_t rows, int64_t tokens) {
  return {std::to_string(rows) + "x" + std::to_string(tokens),
          std::vector<int32_t>(static_cast<size_t>(rows), static_cast<int32_t>(tokens))};
}

Result<RowLayout> parse_layout(std::string_view text) {
  if (text == "mixed") return RowLayout{"mixed", {std::begin(kMixed), std::end(kMixed)}};
  if (text == "mix64") return RowLayout{"mix64", {std::begin(kMix64), std::end(kMix64)}};
  if (text == "list6") return RowLayout{"list6", {std::begin(kList6), std::end(kList6)}};
  const size_t cross = text.find('x');
  int64_t rows = 0, tokens = 0;
  if (cross != std::string_view::npos && parse_count(text.substr(0, cross), kMostRows, rows) &&
      parse_count(text.substr(cross + 1), kMostTokens, tokens) && rows * tokens <= kMostTokens) {
    return uniform_layout(rows, tokens);
  }
  return Status(StatusCode::kInvalidArgument,
                "--layout: expected ROWSxTOKENS with up to " + std::to_string(kMostRows) +
                    " rows and " + std::to_string(kMostTokens) +
                    " tokens in all, mixed, list6 or mix64, got " + std::string(text));
}

const std::vector<BenchOp>& bench_ops() {
  constexpr auto kda = LayerKind::kKda;
  constexpr auto lightning = LayerKind::kLightning;
  static const std::vector<BenchOp> ops = {
      {"kda_prefill", kda, BenchPhase::kPrompt},
      {"kda_decode", kda, BenchPhase::kStep},
      {"kda_verify", kda, BenchPhase::kDraft},
      {"kda_commit", kda, BenchPhase::kDraft},
      {"kda_decode_replay", kda, BenchPhase::kStep},
      {"lightning_prefill", lightning, BenchPhase::kPrompt},
      {"lightning_decode", lightning, BenchPhase::kStep},
      {"lightning_verify", lightning, BenchPhase::kDraft},
      {"lightning_commit", lightning, BenchPhase::kDraft},
      {"lightning_decode_replay", lightning, BenchPhase::kStep},
      {"causal_conv1d_prefill", kda, BenchPhase::kPrompt},
      {"causal_conv1d_update", kda, BenchPhase::kStep},
      {"causal_conv1d_verify", kda, BenchPhase::kDraft},
      {"gated_rms_norm", kda, BenchPhase::kPrompt},
      {"group_rms_norm", lightning, BenchPhase::kPrompt},
      {"state_clear", kda, BenchPhase::kStep},
      {"state_copy", kda, BenchPhase::kStep},
      {"kda_layer_extend", kda, BenchPhase::kPrompt},
      {"kda_layer_decode", kda, BenchPhase::kStep},
      {"kda_layer_verify", kda, BenchPhase::kDraft},
      {"lightning_layer_extend", lightning, BenchPhase::kPrompt},
      {"lightning_layer_decode", lightning, BenchPhase::kStep},
      {"lightning_layer_verify", lightning, BenchPhase::kDraft},
  };
  return ops;
}

bool is_layer_op(const BenchOp& op) { return op.name.find("_layer_") != std::string_view::npos; }

bool is_ring_op(const BenchOp& op) { return op.name.ends_with("_replay"); }

std::string_view gate_name(const LayerSpec& layer) {
  if (layer.kind != LayerKind::kKda) return "-";
  switch (layer.gate_form) {
    case KdaGate::kBounded:
      return "bounded";
    case KdaGate::kActivated:
      return "activated";
    case KdaGate::kSoftplus:
      break;
  }
  return "softplus";
}

std::string choices_of(const BenchSpec& spec) {
  std::string text;
  const auto add = [&](std::string_view word) {
    if (!text.empty()) text.append(" ");
    text.append(word);
  };
  if (spec.gate_given) add(gate_name(spec.layer));
  if (spec.profile != Profile::kPlain) add(profile_name(spec.profile));
  if (is_ring_op(spec.op)) {
    add("ring");
    add(std::to_string(spec.ring_length));
    add(dtype_name(spec.ring_dtype));
  }
  return text;
}

BenchWork work_of(const BenchSpec& spec) {
  const Sizes s(spec);
  BenchWork work;
  work.units = s.tokens * s.HV;
  work.unit = spec.op.phase == BenchPhase::kStep ? "request-head" : "token-head";
  const std::string_view name = spec.op.name;
  double twice = spec.op.phase == BenchPhase::kStep ? s.states() : 0.0;  // read and written
  if (is_layer_op(spec.op)) {
    add_layer(s, spec.op, work);
  } else if (is_ring_op(spec.op)) {
    add_ring(s, spec, work);
    twice = 0.0;
  } else if (name.ends_with("_commit")) {
    add_commit(s, spec.op, work);
    twice = s.states();
  } else if (name.starts_with("state_")) {
    work.bytes = (name == "state_copy" ? 2.0 : 1.0) * (s.states() + s.windows());
    twice = 0.0;
  } else if (name.starts_with("causal_conv1d")) {
    add_conv(s, spec.op.phase, work);
    twice = spec.op.phase == BenchPhase::kStep ? s.windows() : 0.0;
  } else if (name == "gated_rms_norm") {
    work.bytes = 3 * s.out() + s.V * 4;
  } else if (name == "group_rms_norm") {
    work.bytes = 3 * s.out() + s.HV * s.V * 4;
  } else if (spec.op.layer == LayerKind::kLightning) {
    add_lightning(s, spec.op.phase, work);
  } else {
    add_kda(s, spec.op.phase, work);
  }
  work.touched = work.bytes - twice;
  return work;
}

int64_t slot_bytes(const BenchSpec& spec) {
  ModelConfig model;
  model.num_layers = spec.model_layers;
  model.linear_layers = {spec.layer};
  return bytes_per_slot(make_pool_spec(model, spec.state_dtype, spec.io_dtype));
}

}  // namespace linestate::cli
