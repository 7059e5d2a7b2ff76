#include "state/replay_rings.h"

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
  Device device{};
  int64_t used = 0;

  TensorView take(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view(nullptr, dtype, shape, device);
    if (base != nullptr) view.data = base + used;
    used = round_up(used + view.num_elements() * dtype_bytes(dtype), 64);
    return view;
  }
};

struct Cut {
  TensorView cursor;
  std::vector<ReplayRing> layers;
  std::vector<TensorView> slopes;
};

Cut cut(const PoolSpec& spec, int64_t num_slots, Cutter& cutter) {
  Cut made;
  made.cursor = cutter.take(DType::kI32, {num_slots});
  const int64_t entries = spec.replay.length - 1;
  const DType dtype = spec.replay.dtype;
  for (const LayerState& layer : spec.layers) {
    ReplayRing ring;
    ring.keys = cutter.take(dtype, {num_slots, layer.heads, entries, layer.k_dim});
    ring.values = cutter.take(dtype, {num_slots, layer.heads, entries, layer.v_dim});
    if (!is_lightning(layer)) {
      ring.gamma = cutter.take(DType::kF32, {num_slots, layer.heads, layer.k_dim});
    }
    made.layers.push_back(ring);
    made.slopes.push_back(is_lightning(layer) ? cutter.take(DType::kF32, {layer.heads})
                                              : TensorView());
  }
  return made;
}

}  // namespace

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

Result<ReplayRings> ReplayRings::create(const PoolSpec& spec, int64_t num_slots, Device device) {
  ReplayRings rings;
  if (spec.replay.length <= 1) return rings;
  const auto no_memory = [&] {
    return Status(StatusCode::kResourceExhausted,
                  concat("replay rings: cannot allocate ", num_slots, " slots of ",
                         replay_bytes_per_slot(spec), " bytes"));
  };
  int64_t total = 0;
  if (__builtin_mul_overflow(replay_bytes_per_slot(spec), num_slots, &total)) return no_memory();
  Cutter counter;
  cut(spec, num_slots, counter);
  Result<DeviceMemory> block = DeviceMemory::allocate(device, counter.used);
  if (!block.ok()) {
    return block.status().code() == StatusCode::kResourceExhausted ? no_memory() : block.status();
  }
  rings.memory_ = std::move(block).value();
  Cutter cutter{static_cast<char*>(rings.memory_.data()), device, 0};
  Cut made = cut(spec, num_slots, cutter);
  rings.cursor_ = made.cursor;
  rings.layers_ = std::move(made.layers);
  rings.slopes_ = std::move(made.slopes);
  LINESTATE_RETURN_IF_ERROR(rings.fill(spec));
  return rings;
}

Status ReplayRings::fill(const PoolSpec& spec) {
  const Device device = memory_.device();
  LINESTATE_RETURN_IF_ERROR(fill_bytes({cursor_.data, device}, 0, cursor_.num_elements() * 4));
  for (size_t i = 0; i < slopes_.size(); ++i) {
    if (!slopes_[i].defined()) continue;
    LINESTATE_RETURN_IF_ERROR(copy_bytes({slopes_[i].data, device},
                                         {spec.replay.slopes[i].data(), {}},
                                         slopes_[i].num_elements() * 4));
  }
  // Streams of the caller's own do not wait for the default one.
  return synchronize(device);
}

}  // namespace linestate
