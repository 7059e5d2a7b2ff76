// Continuous batching with chunked prefill, as pure logic: which request runs which tokens in which
// step. A request of I input and O output tokens is I tokens of prefill, in chunks, then O decode
// steps of one token; it leaves after the last one.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace linestate::cli {

struct RequestLengths {
  int64_t input = 0;   // >= 1
  int64_t output = 0;  // >= 1
};

struct SchedulerOptions {
  int64_t prefill_budget = 2048;  // prefill tokens a step, over all requests
  int64_t max_running = 16;       // requests that hold a slot
};

/// Tokens [start, start + tokens) of a request.
struct ScheduledRow {
  int64_t request = 0;
  int64_t start = 0;
  int64_t tokens = 0;
};

struct StepPlan {
  std::vector<int64_t> admitted;     // requests that need a slot before this step
  std::vector<ScheduledRow> extend;  // in order of admission; they share the prefill budget
  std::vector<ScheduledRow> decode;  // one token each, in order of admission
  bool empty() const { return extend.empty() && decode.empty(); }
};

class Scheduler {
 public:
  Scheduler(std::vector<RequestLengths> requests, SchedulerOptions options);

  /// Puts a request at the end of the queue. Each request arrives once.
  void arrive(int64_t request);

  /// The next step; empty when nothing is running or queued. Call complete() before the next one.
  StepPlan plan();
  /// Advances every request of the step; returns those that are done, whose slots are free now.
  std::vector<int64_t> complete(const StepPlan& step);

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  int64_t finished() const { return finished_; }
  bool idle() const { return running_.empty() && queue_.empty(); }

 private:
  std::vector<RequestLengths> requests_;
  SchedulerOptions options_;
  std::vector<int64_t> done_tokens_;  // per request, input and output together
  std::deque<int64_t> queue_;
  std::vector<int64_t> running_;  // in order of admission
  int64_t finished_ = 0;
};

}  // namespace linestate::cli
