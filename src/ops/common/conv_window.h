// The one routine that moves a convolution window: prefill, update, commit and snapshots use it.
#pragma once

#include <cstdint>

#include "base/element.h"
#include "base/run_copy.h"
#include "linestate/tensor.h"

namespace linestate {

/// Half-open range of channels.
struct ChannelRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// `window` [P, channels, W-1] at slot `to` becomes the last W-1 of (window at slot `from` ++
/// inputs), for any number of inputs including 0. Input i is x[token_at(i)], x [.., channels]; bits
/// are kept when the dtypes are equal, and an f32 window holds 16-bit inputs exactly. `fresh`
/// selects zeros for the old window.
template <typename TokenAt>
void write_window(const TensorView& window, int64_t from, int64_t to, bool fresh,
                  const ConstTensorView& x, int64_t inputs, ChannelRange channels,
                  const TokenAt& token_at) {
  const int64_t tail = window.shape[2];
  const auto place = [&](int64_t slot, int64_t j) {
    return Run{window.data, window.dtype, offset_of(window, slot, channels.begin, j),
               window.stride[1]};
  };
  // Places fill from the oldest up, and each reads one at or above itself: nothing is lost when
  // the slots are one.
  for (int64_t j = 0; j < tail; ++j) {
    const int64_t source = inputs + j;  // index into old window ++ inputs
    if (source >= tail) {
      const ConstRun input{x.data, x.dtype, offset_of(x, token_at(source - tail), channels.begin),
                           x.stride[1]};
      copy_run(place(to, j), input, channels.size());
    } else if (fresh) {
      zero_run(place(to, j), channels.size());
    } else {
      const Run old = place(from, source);
      copy_run(place(to, j), {old.data, old.dtype, old.offset, old.stride}, channels.size());
    }
  }
}

/// write_window in place.
template <typename TokenAt>
void advance_window(const TensorView& window, int64_t slot, bool fresh, const ConstTensorView& x,
                    int64_t inputs, ChannelRange channels, const TokenAt& token_at) {
  if (inputs == 0 && !fresh) return;
  write_window(window, slot, slot, fresh, x, inputs, channels, token_at);
}

}  // namespace linestate
