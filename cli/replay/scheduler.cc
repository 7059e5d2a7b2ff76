#include "cli/replay/scheduler.h"

#include <algorithm>
#include <utility>

namespace linestate::cli {

Scheduler::Scheduler(std::vector<RequestLengths> requests, SchedulerOptions options)
    : requests_(std::move(requests)), options_(options), done_tokens_(requests_.size(), 0) {}

void Scheduler::arrive(int64_t request) { queue_.push_back(request); }

StepPlan Scheduler::plan(const std::function<int64_t(int64_t request)>& cached) {
  StepPlan step;
  while (!queue_.empty() && running() < options_.max_running) {
    const int64_t request = queue_.front();
    queue_.pop_front();
    step.admitted.push_back(request);
    running_.push_back(request);
    if (cached) done_tokens_[static_cast<size_t>(request)] = cached(request);
  }
  int64_t budget = options_.prefill_budget;
  for (const int64_t request : running_) {
    const auto r = static_cast<size_t>(request);
    const int64_t done = done_tokens_[r];
    if (done >= requests_[r].input) {
      step.decode.push_back({request, done, 1});
      continue;
    }
    const int64_t tokens = std::min(requests_[r].input - done, budget);
    if (tokens == 0) continue;  // waits for the next step's budget
    step.extend.push_back({request, done, tokens});
    budget -= tokens;
  }
  return step;
}

std::vector<int64_t> Scheduler::complete(const StepPlan& step) {
  for (const std::vector<ScheduledRow>* rows : {&step.extend, &step.decode}) {
    for (const ScheduledRow& row : *rows) {
      done_tokens_[static_cast<size_t>(row.request)] += row.tokens;
    }
  }
  for (const DraftedRow& drafted : step.verify) {
    done_tokens_[static_cast<size_t>(drafted.row.request)] += drafted.row.tokens;
  }
  std::vector<int64_t> done;
  std::erase_if(running_, [&](int64_t request) {
    const RequestLengths& lengths = requests_[static_cast<size_t>(request)];
    if (done_tokens_[static_cast<size_t>(request)] < lengths.input + lengths.output) return false;
    done.push_back(request);
    return true;
  });
  finished_ += static_cast<int64_t>(done.size());
  return done;
}

}  // namespace linestate::cli
