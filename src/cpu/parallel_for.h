// Threads for CPU kernels. Work is cut into tasks that never share an output, so the number of
// threads and the order of tasks cannot change a bit of any result.
#pragma once

#include <omp.h>

#include <cstdint>

#include "linestate/exec_context.h"

namespace linestate {

/// Upper bound on threads one call uses; also the number of per-thread scratch areas.
inline int thread_count(const ExecContext& context) {
  constexpr int kMost = 1024;
  const int wanted = context.num_threads > 0 ? context.num_threads : omp_get_max_threads();
  return wanted < kMost ? wanted : kMost;
}

/// `context` with one thread when the whole call touches fewer elements than waking a second thread
/// is worth; otherwise `context` as it is.
inline ExecContext threads_for(const ExecContext& context, int64_t elements) {
  constexpr int64_t kWorthAThread = int64_t{1} << 17;
  ExecContext chosen = context;
  if (elements < kWorthAThread) chosen.num_threads = 1;
  return chosen;
}

/// body(task, thread) for task in [0, tasks), thread in [0, thread_count(context)).
template <typename Body>
void parallel_for(const ExecContext& context, int64_t tasks, const Body& body) {
  const int threads = thread_count(context);
  if (threads == 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t task = 0; task < tasks; ++task) body(task, omp_get_thread_num());
}

}  // namespace linestate
