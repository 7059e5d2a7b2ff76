#include "ops/norm/norm_lanes_cpu.h"

#include "base/element.h"
#include "base/int_math.h"
#include "cpu/avx2.h"
#include "cpu/lanewise_math.h"

namespace linestate {
namespace {

constexpr int64_t kPiece = 256;
constexpr int kLanes = 16;

void load_piece(const ConstRun& run, int64_t begin, int64_t count, float* out) {
  load_run(run.data, run.dtype, run.offset + begin * run.stride, run.stride, count, out);
}

// lanes[i mod 16] += values[i]^2; n is a multiple of 16.
LINESTATE_INLINE void add_squares_body(const float* values, int64_t n, float* lanes_io) {
  float lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lanes_io[lane];
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane] * values[i + lane];
  }
  for (int lane = 0; lane < kLanes; ++lane) lanes_io[lane] = lanes[lane];
}

LINESTATE_AVX2 void add_squares_avx2(const float* values, int64_t n, float* lanes) {
  add_squares_body(values, n, lanes);
}

void add_squares(const float* values, int64_t n, float* lanes) {
  cpu_has_avx2() ? add_squares_avx2(values, n, lanes) : add_squares_body(values, n, lanes);
}

LINESTATE_INLINE void multiply_sigmoid_body(const float* __restrict__ gate, int64_t n,
                                            float* __restrict__ values) {
  for (int64_t i = 0; i < n; ++i) values[i] *= lanewise_sigmoid(gate[i]);
}

LINESTATE_AVX2 void multiply_sigmoid_avx2(const float* gate, int64_t n, float* values) {
  multiply_sigmoid_body(gate, n, values);
}

void multiply_sigmoid(const float* gate, int64_t n, float* values) {
  cpu_has_avx2() ? multiply_sigmoid_avx2(gate, n, values) : multiply_sigmoid_body(gate, n, values);
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
    add_squares(values, padded, lanes);
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
      multiply_sigmoid(other, count, values);
    }
    store_run(out.data, out.dtype, out.offset + begin * out.stride, out.stride, count, values);
  }
}

}  // namespace linestate
