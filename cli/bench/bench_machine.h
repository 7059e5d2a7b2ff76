// What the figures were measured on and with.
#pragma once

#include "cli/bench/bench_device.h"
#include "testing/json.h"

namespace linestate::cli {

/// Bytes of the CPU's data caches; 0 where the system does not say.
struct CpuCaches {
  int64_t l1d = 0;
  int64_t l2 = 0;
  int64_t l3 = 0;
  int64_t last() const { return l3 > 0 ? l3 : l2; }
};
CpuCaches cpu_caches();

/// {"device", "name", "features", "memory_bytes", "cpu", "simd" (what the `cpu` kernels run with),
/// "logical_cpus", "fma_target", "caches": {"l1d", "l2", "l3"}, "load_1min"}; sizes in bytes, null
/// where the system does not say. The load is that of now.
testing::Json machine_json(const BenchDevice& device);
/// {"version", "numerics", "description", "flags", "commit"}.
testing::Json build_json();
/// "2026-11-30T22:10:00Z".
std::string utc_now();

}  // namespace linestate::cli
