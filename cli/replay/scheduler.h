// Continuous batching with chunked prefill, as pure logic: which request runs which tokens in which
// step. A request of I input and O output tokens is I tokens of prefill, in chunks, then O decode
// steps of one token, or fewer that accept drafts; it leaves after the last one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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

/// Draft tokens of one verify row. Node 0 is the request's next token.
struct Draft {
  std::vector<int32_t> parent;    // by node, [width]; nodes at and beyond `valid` are placeholders
  int64_t valid = 0;              // nodes, at most what the request has left
  std::vector<int64_t> accepted;  // the nodes that are right, from the root on: a path
  int64_t width() const { return static_cast<int64_t>(parent.size()); }
  /// Edges from the root to `node`. REQUIRES: not inert.
  int64_t depth(int64_t node) const;
  /// Named by nobody: on no path, never right, its output is zero.
  bool inert(int64_t node) const { return node > 0 && parent[static_cast<size_t>(node)] < 0; }
  /// Nodes behind the root that are drafts, neither inert nor placeholders.
  int64_t drafted() const;
};

/// A row that drafts; row.tokens = what it advances by, its accepted nodes.
struct DraftedRow {
  ScheduledRow row;
  Draft draft;
};

struct StepPlan {
  std::vector<int64_t> admitted;     // requests that need a slot before this step
  std::vector<ScheduledRow> extend;  // in order of admission; they share the prefill budget
  std::vector<ScheduledRow> decode;  // one token each, in order of admission
  std::vector<DraftedRow> verify;    // taken from `decode` by plan_drafts()
  bool empty() const { return extend.empty() && decode.empty() && verify.empty(); }
};

class Scheduler {
 public:
  Scheduler(std::vector<RequestLengths> requests, SchedulerOptions options);

  /// Puts a request at the end of the queue. Each request arrives once.
  void arrive(int64_t request);

  /// The next step; empty when nothing is running or queued. Call complete() before the next one.
  /// `cached` is asked once for every request that is admitted: how many tokens of its input need
  /// no prefill, fewer than all of them; none given = none.
  StepPlan plan(const std::function<int64_t(int64_t request)>& cached = {});
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
