#include "cli/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/interrupt.h"

namespace linestate::cli {
namespace {

constexpr auto kBarPeriod = std::chrono::milliseconds(200);
constexpr auto kLinePeriod = std::chrono::seconds(10);
constexpr int kBarWidth = 30;

}  // namespace

ProgressStyle choose_progress(bool json) {
  if (isatty(STDERR_FILENO) != 0) return ProgressStyle::kBar;
  return json ? ProgressStyle::kNone : ProgressStyle::kLines;
}

Progress::Progress(ProgressStyle style, int64_t total_requests, int64_t total_tokens)
    : style_(style),
      total_requests_(total_requests),
      total_tokens_(total_tokens),
      start_(Clock::now()),
      next_(start_ + (style == ProgressStyle::kBar ? Clock::duration(kBarPeriod) : kLinePeriod)) {
  set_interrupt_progress(0, total_requests);
}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(int64_t requests, int64_t tokens) {
  set_interrupt_progress(requests, total_requests_);
  requests_ = requests;
  const Clock::time_point now = Clock::now();
  if (style_ == ProgressStyle::kNone || now < next_) return;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double part = static_cast<double>(tokens) / static_cast<double>(total_tokens_);
  const double left = tokens > 0 ? seconds * (1.0 - part) / part : 0.0;
  if (style_ == ProgressStyle::kBar) {
    const int full = std::clamp(static_cast<int>(part * kBarWidth), 0, kBarWidth);
    const std::string bar = std::string(static_cast<size_t>(full), '#') +
                            std::string(static_cast<size_t>(kBarWidth - full), '.');
    std::fprintf(stderr, "\r[%s] %3.0f %%  %lld of %lld requests, %.0f s, %.0f s left\033[K",
                 bar.c_str(), 100.0 * part, static_cast<long long>(requests),
                 static_cast<long long>(total_requests_), seconds, left);
    drawn_ = true;
    next_ = now + kBarPeriod;
  } else {
    std::fprintf(stderr,
                 "replay: %.0f %% of the tokens, %lld of %lld requests, %.0f s, %.0f s left\n",
                 100.0 * part, static_cast<long long>(requests),
                 static_cast<long long>(total_requests_), seconds, left);
    next_ = now + kLinePeriod;
  }
  std::fflush(stderr);
}

void Progress::waiting(double seconds) {
  if (style_ != ProgressStyle::kLines ||
      seconds < std::chrono::duration<double>(kLinePeriod).count()) {
    return;
  }
  std::fprintf(stderr, "replay: %lld of %lld requests, waiting %.0f s for the next\n",
               static_cast<long long>(requests_), static_cast<long long>(total_requests_), seconds);
  std::fflush(stderr);
}

}  // namespace linestate::cli
