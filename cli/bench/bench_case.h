// One thing to measure: an operator or a whole layer over rows of given lengths, in words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/replay/profile.h"
#include "linestate/model_config.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate::cli {

/// Tokens of every row.
struct RowLayout {
  std::string name;  // "8x1024", "mixed"
  std::vector<int32_t> tokens;

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  int64_t total() const;
};

/// "RxT" (R rows of T tokens), "mixed" (the prompts of data/mooncake_excerpt.jsonl), "list6" (six
/// uneven rows, 8192 tokens) or "mix64" (64 short rows, 13410 tokens).
/// Errors: kInvalidArgument naming what is allowed.
Result<RowLayout> parse_layout(std::string_view text);
RowLayout uniform_layout(int64_t rows, int64_t tokens);

/// What the rows of a case are.
enum class BenchPhase : uint8_t {
  kPrompt,  // fresh rows, --layout
  kStep,    // one token a row on an old state, --batch
  kDraft,   // --draft tokens a row on an old state, --batch
};

/// Which layers have the operator.
struct BenchOp {
  std::string_view name;  // "kda_prefill", "kda_layer_extend"
  LayerKind layer = LayerKind::kKda;
  BenchPhase phase = BenchPhase::kPrompt;
};
/// Everything `linestate bench` knows, in the order it runs.
const std::vector<BenchOp>& bench_ops();

/// What somebody else's kernel needs for the same case, and what ours is to reach; 0 = unknown.
struct BenchPeer {
  std::string name;
  double us = 0.0;
  double target_us = 0.0;
};

struct BenchSpec {
  BenchOp op;
  std::string model;
  int32_t model_layers = 0;  // all decoder layers, for the slopes
  LayerSpec layer;           // heads as measured
  RowLayout layout;
  DType io_dtype = DType::kBF16;
  DType state_dtype = DType::kF32;
  Profile profile = Profile::kPlain;  // decays: what the gate tensor and its weights give
  int64_t ring_length = 16;           // of the replay operators
  DType ring_dtype = DType::kF32;
  int32_t threads = 1;
  std::string kernel;
  BenchPeer peer;
  bool gate_given = false;  // the gate is not the model's own
};

/// What is not as the model and the defaults have it: "bounded slow ring 16 f32"; else "".
std::string choices_of(const BenchSpec& spec);
std::string_view gate_name(const LayerSpec& layer);  // "-" without one

/// The least that the work has to move and compute, whatever the algorithm.
///
/// Bytes: every input and output of the call once, and of every row its state and window: read and
/// written by steps and commits, only read by drafts, only written by fresh prompts. Weights once a
/// call. Of a ring what the mean row reads and writes: half its records, a write of the state in R.
/// What operators of a layer hand to each other is not counted.
/// Operations: of the recurrence, a multiply-add being two: 6 K V a token and head of KDA (S k,
/// u k^T, S q), 4 K V of Lightning (k v^T, S^T q), 2 W a channel of the convolution, none for
/// norms. Chunked kernels do more or fewer.
struct BenchWork {
  double bytes = 0.0;
  double touched = 0.0;  // bytes of different addresses: what is read and written counts once
  double operations = 0.0;
  double units = 0.0;     // what a time is divided by
  std::string_view unit;  // "token-head"; "request-head" for steps
};
BenchWork work_of(const BenchSpec& spec);

/// Bytes of one slot of the spec's layer: state and window.
int64_t slot_bytes(const BenchSpec& spec);

bool is_layer_op(const BenchOp& op);
bool is_ring_op(const BenchOp& op);

}  // namespace linestate::cli
