#include "cli/bench/bench_problem.h"

#include <utility>

#include "cli/bench/bench_problem_parts.h"

namespace linestate::cli {

Result<BenchProblem> make_bench_problem(BenchDevice& device, const BenchSpec& spec) {
  LINESTATE_RETURN_IF_ERROR(check_bench_memory(device, spec));
  if (spec.op.name.find("_layer_") != std::string_view::npos) {
    return make_layer_problem(device, spec);
  }
  Result<BenchRows> rows = make_bench_rows(device, spec);
  if (!rows.ok()) return rows.status();
  return make_op_problem(device, spec, std::move(rows).value());
}

}  // namespace linestate::cli
