// Moving runs of elements between tensors whose dtypes are known only at run time.
#pragma once

#include <cstdint>

#include "linestate/tensor.h"

namespace linestate {

/// Elements offset, offset + stride, offset + 2 stride, ... of `data`. The count goes beside it.
template <typename Void>
struct BasicRun {
  Void* data;
  DType dtype;
  int64_t offset;
  int64_t stride;
};
using Run = BasicRun<void>;
using ConstRun = BasicRun<const void>;

/// dst[i] = src[i] for i in [0, n). Equal dtypes copy bits, NaN payloads too; f32, bf16 and f16
/// convert into each other through f32 with round to nearest even. Returns false when a finite
/// value became infinite (the caller reports it).
/// REQUIRES: no element of dst is an element of src; dtypes equal, or both of the three.
bool copy_run(const Run& dst, const ConstRun& src, int64_t n);

/// All bits zero, which is +0 in every dtype.
void zero_run(const Run& dst, int64_t n);

}  // namespace linestate
