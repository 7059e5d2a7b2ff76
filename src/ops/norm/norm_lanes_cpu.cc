#include "ops/norm/norm_lanes_cpu.h"

#include "base/element.h"
#include "base/int_math.h"
#include "cpu/lanewise_math.h"

namespace linestate {
namespace {

constexpr int64_t kPiece = 256;
constexpr int kLanes = 16;

void load_piece(const ConstRun& run, int64_t begin, int64_t count, float* out) {
  load_run(run.data, run.dtype, run.offset + begin * run.stride, run.stride, count, out);
}

}  // namespace

float norm_sum_sq(const ConstRun& x, int64_t n) {
  float lanes[kLanes] = {};
  alignas(64) float values[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = min_i64(kPiece, n - begin);
    load_piece(x, begin, count, values);
    // Zeros fill the last group of lanes: adding +0 to a sum of squares changes nothing.
    const int64_t padded = round_up(count, kLanes);
    for (int64_t i = count; i < padded; ++i) values[i] = 0.0f;
    for (int64_t i = 0; i < padded; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane] * values[i + lane];
    }
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

void norm_scale(const ConstRun& x, float factor, const ConstRun& weight, const ConstRun& gate,
                const Run& out, int64_t n) {
  alignas(64) float values[kPiece];
  alignas(64) float other[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = min_i64(kPiece, n - begin);
    load_piece(x, begin, count, values);
    load_piece(weight, begin, count, other);
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] * factor * other[i];
    if (gate.data != nullptr) {
      load_piece(gate, begin, count, other);
      for (int64_t i = 0; i < count; ++i) values[i] *= lanewise_sigmoid(other[i]);
    }
    store_run(out.data, out.dtype, out.offset + begin * out.stride, out.stride, count, values);
  }
}

}  // namespace linestate
