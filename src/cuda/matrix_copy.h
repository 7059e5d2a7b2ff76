// Copies of equally spaced runs of bytes, queued on a stream.
#pragma once

#include <cstdint>

#include "linestate/device_memory.h"
#include "linestate/status.h"

namespace linestate {

/// `runs` runs of run_bytes from src to dst; run r begins at r * pitch on either side. The stream
/// belongs to the CUDA side. Returns at once, as copy_bytes_async. REQUIRES: pitches >= run_bytes
/// where runs > 1. May be captured.
Status copy_runs_async(Place dst, int64_t dst_pitch, ConstPlace src, int64_t src_pitch,
                       int64_t run_bytes, int64_t runs, void* stream);

}  // namespace linestate
