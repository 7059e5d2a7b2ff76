// Named ranges for profilers (NVTX in builds with CUDA, nothing otherwise). The library marks
// prepare, forward and commit; callers may mark what is around them.
#pragma once

namespace linestate {

class TraceRange {
 public:
  /// `name` is copied by the profiler. Costs nothing measurable when no profiler is attached.
  explicit TraceRange(const char* name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace linestate
