// How far a run is, on stderr: a bar on a terminal, a line every ten seconds otherwise.
#pragma once

#include <chrono>
#include <cstdint>

namespace linestate::cli {

enum class ProgressStyle : uint8_t { kNone, kLines, kBar };

/// Bar when stderr is a terminal; lines otherwise, but nothing when stdout is for a program.
ProgressStyle choose_progress(bool json);

class Progress {
 public:
  Progress(ProgressStyle style, int64_t total_requests, int64_t total_tokens);
  /// Removes the bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t requests, int64_t tokens);
  /// A line when nothing will happen for longer than the time between two lines.
  void waiting(double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  ProgressStyle style_;
  int64_t total_requests_;
  int64_t total_tokens_;
  int64_t requests_ = 0;
  Clock::time_point start_;
  Clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace linestate::cli
