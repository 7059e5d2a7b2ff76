// Which instruction set the `cpu` rows run with.
#pragma once

namespace linestate {

/// Google Highway's name of the target chosen for this CPU: "AVX2", "AVX3" (AVX-512), "SSE4", ...
const char* simd_target_name();

}  // namespace linestate
