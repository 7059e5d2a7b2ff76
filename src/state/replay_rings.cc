#include "state/replay_rings.h"

#include <cstdlib>
#include <cstring>

#include "base/int_math.h"
#include "base/message.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {
namespace {

bool is_lightning(const LayerState& layer) { return layer.layout == StateLayout::kKV; }

int64_t record_bytes(const LayerState& layer, const ReplaySpec& replay) {
  const int64_t one = layer.heads * (layer.k_dim + layer.v_dim) * dtype_bytes(replay.dtype);
  const int64_t gamma = is_lightning(layer) ? 0 : layer.heads * layer.k_dim * 4;
  return (replay.length - 1) * one + gamma;
}

// Hands out the tensors of one block; a null base counts.
struct Cutter {
  char* base = nullptr;
  int64_t used = 0;

  TensorView take(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    if (base != nullptr) view.data = base + used;
    used = round_up(used + view.num_elements() * dtype_bytes(dtype), 64);
    return view;
  }
};

std::vector<ReplayRing> cut(const PoolSpec& spec, int64_t num_slots, Cutter& cutter,
                            TensorView& cursor) {
  cursor = cutter.take(DType::kI32, {num_slots});
  std::vector<ReplayRing> layers;
  const int64_t entries = spec.replay.length - 1;
  const DType dtype = spec.replay.dtype;
  for (const LayerState& layer : spec.layers) {
    ReplayRing ring;
    ring.keys = cutter.take(dtype, {num_slots, layer.heads, entries, layer.k_dim});
    ring.values = cutter.take(dtype, {num_slots, layer.heads, entries, layer.v_dim});
    if (!is_lightning(layer)) {
      ring.gamma = cutter.take(DType::kF32, {num_slots, layer.heads, layer.k_dim});
    }
    layers.push_back(ring);
  }
  return layers;
}

}  // namespace

void ReplayRings::Free::operator()(void* memory) const { std::free(memory); }

Status validate_replay(const PoolSpec& spec) {
  const ReplaySpec& replay = spec.replay;
  if (replay.length < 1 || replay.length > kMaxReplayLength) {
    return invalid_argument("spec.replay.length: expected 1 to ", kMaxReplayLength, ", got ",
                            replay.length);
  }
  if (replay.length == 1) return {};
  if (replay.dtype != DType::kF32 && replay.dtype != DType::kF16) {
    return invalid_argument("spec.replay.dtype: expected f32 or f16, got ",
                            dtype_name(replay.dtype));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const auto want = is_lightning(spec.layers[i]) ? spec.layers[i].heads : int64_t{0};
    const auto have =
        i < replay.slopes.size() ? static_cast<int64_t>(replay.slopes[i].size()) : int64_t{0};
    if (want != have) {
      return invalid_argument("spec.replay.slopes[", i, "]: expected ", want, " slopes, got ",
                              have);
    }
  }
  return {};
}

int64_t replay_bytes_per_slot(const PoolSpec& spec) {
  if (spec.replay.length <= 1) return 0;
  int64_t bytes = 4;  // the cursor
  for (const LayerState& layer : spec.layers) bytes += record_bytes(layer, spec.replay);
  return bytes;
}

Result<ReplayRings> ReplayRings::create(const PoolSpec& spec, int64_t num_slots) {
  ReplayRings rings;
  if (spec.replay.length <= 1) return rings;
  int64_t total = 0;
  if (__builtin_mul_overflow(replay_bytes_per_slot(spec), num_slots, &total)) total = -1;
  Cutter counter;
  if (total >= 0) cut(spec, num_slots, counter, rings.cursor_);
  void* block =
      total < 0 ? nullptr : std::aligned_alloc(64, static_cast<size_t>(round_up(counter.used, 64)));
  if (block == nullptr) {
    return Status(StatusCode::kResourceExhausted,
                  concat("replay rings: cannot allocate ", num_slots, " slots of ",
                         replay_bytes_per_slot(spec), " bytes"));
  }
  rings.memory_.reset(block);
  Cutter cutter{static_cast<char*>(block), 0};
  rings.layers_ = cut(spec, num_slots, cutter, rings.cursor_);
  std::memset(rings.cursor_.data, 0, static_cast<size_t>(num_slots) * sizeof(int32_t));
  return rings;
}

}  // namespace linestate
