// Visiting the elements of one slot of a plane, or of the same slot shape in two planes, in the
// longest runs that both layouts allow.
#pragma once

#include <array>
#include <cstdint>

#include "linestate/tensor.h"

namespace linestate {

class SlotWalk {
 public:
  /// Pieces that one slot can be cut into for threads.
  static constexpr int64_t kPieces = 16;

  /// REQUIRES: dst and src have the same shape apart from dimension 0.
  SlotWalk(const ConstTensorView& dst, const ConstTensorView& src);

  /// Calls run(dst_offset, src_offset, n), offsets in elements from the slot's first, for the
  /// part of the slot that belongs to `piece` of [0, kPieces).
  template <typename RunBody>
  void visit(int64_t piece, const RunBody& run) const {
    const Dim& split = dims_[static_cast<size_t>(first_)];
    const int64_t begin = split.size * piece / kPieces;
    const int64_t end = split.size * (piece + 1) / kPieces;
    std::array<int64_t, kDims> low{};
    std::array<int64_t, kDims> high{};
    for (size_t d = 0; d < kDims; ++d) high[d] = dims_[d].size;
    low[static_cast<size_t>(first_)] = begin;
    high[static_cast<size_t>(first_)] = end;
    const int64_t n = high[3] - low[3];
    if (n <= 0) return;
    for (int64_t i = low[0]; i < high[0]; ++i) {
      for (int64_t j = low[1]; j < high[1]; ++j) {
        for (int64_t k = low[2]; k < high[2]; ++k) {
          run(i * dims_[0].dst + j * dims_[1].dst + k * dims_[2].dst + low[3] * dims_[3].dst,
              i * dims_[0].src + j * dims_[1].src + k * dims_[2].src + low[3] * dims_[3].src, n);
        }
      }
    }
  }
  static constexpr size_t kDims = kMaxRank - 1;
  struct Dim {
    int64_t size = 1;
    int64_t dst = 0;
    int64_t src = 0;
  };
  /// Outermost first; the last is the run; unused ones have size 1.
  const std::array<Dim, kDims>& dims() const { return dims_; }
  int64_t dst_stride() const { return dims_[3].dst; }  // within a run
  int64_t src_stride() const { return dims_[3].src; }

 private:
  static_assert(kDims == 4);
  std::array<Dim, kDims> dims_;
  int first_ = 3;  // outermost used dimension, the one that pieces cut
};

}  // namespace linestate
