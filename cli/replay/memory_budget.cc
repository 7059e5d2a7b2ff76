// How many slots fit, and whether the machine has the memory.
#include <fstream>
#include <sstream>
#include <string>

#include "cli/replay/engine.h"

namespace linestate::cli {

Result<int64_t> choose_slots(const ReplayOptions& options, int64_t slot_bytes) {
  if (!options.pool_bytes_given) return options.max_running;
  const int64_t fit = options.pool_bytes / slot_bytes;
  const int64_t wanted = options.max_running_given ? options.max_running : 1;
  if (fit < wanted) {
    std::ostringstream text;
    text << "--pool-bytes " << options.pool_bytes << " is too small: one slot of " << options.model
         << " takes " << slot_bytes << " bytes, " << wanted
         << (wanted == 1 ? " slot needs " : " slots need ") << wanted * slot_bytes << " bytes";
    return Status(StatusCode::kResourceExhausted, text.str());
  }
  return fit < options.max_running ? fit : options.max_running;
}

Result<int64_t> choose_cache_slots(const ReplaySettings& settings, int64_t slots,
                                   int64_t slot_bytes) {
  if (!settings.prefix_cache) return int64_t{0};
  const ReplayOptions& options = settings.options;
  if (!options.cache_bytes_given) return slots;
  const int64_t fit = options.cache_bytes / slot_bytes;
  if (fit >= 1) return fit;
  std::ostringstream text;
  text << "--cache-bytes " << options.cache_bytes << " is too small: one snapshot of "
       << options.model << " takes " << slot_bytes << " bytes";
  return Status(StatusCode::kResourceExhausted, text.str());
}

Status check_memory(int64_t needed, int64_t available) {
  if (available < 0 || needed <= available) return {};
  std::ostringstream text;
  text << "this run needs " << needed << " bytes of memory and the machine has " << available
       << " available; use fewer --max-running, --layers or a smaller --prefill-budget, "
          "--draft-length or --cache-bytes";
  return Status(StatusCode::kResourceExhausted, text.str());
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return -1;
}

}  // namespace linestate::cli
