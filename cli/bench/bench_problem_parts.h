// What operators and layers have in common when they are made ready. Only for cli/bench.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/bench/bench_problem.h"
#include "cli/bench/bench_rows.h"
#include "cli/replay/profile.h"
#include "linestate/kernel_info.h"

namespace linestate::cli {

/// Makes tensors one after the other and keeps them in a list. The first error stays in status();
/// tensors asked for after it, and the one that failed, are undefined.
class TensorMaker {
 public:
  TensorMaker(BenchDevice& device, std::vector<BenchTensor>& kept) : device_(device), kept_(kept) {}

  TensorView normal(DType dtype, std::initializer_list<int64_t> shape, double scale = 1.0,
                    double mean = 0.0) {
    return keep(device_.normal(dtype, shape, scale, mean));
  }
  TensorView zeros(DType dtype, std::initializer_list<int64_t> shape) {
    return keep(device_.make(dtype, shape));
  }
  /// Undefined stays undefined.
  TensorView copy(const testing::HostTensor& tensor) {
    return tensor.defined() ? keep(device_.place(tensor)) : TensorView();
  }
  /// Gives the context scratch of the size that an operator asked for.
  void workspace(const Result<int64_t>& bytes, ExecContext& context) {
    if (!bytes.ok()) {
      if (status_.ok()) status_ = bytes.status();
    } else if (*bytes > 0) {
      context.workspace = {zeros(DType::kU8, {*bytes}).data, *bytes};
    }
  }
  const Status& status() const { return status_; }

 private:
  TensorView keep(Result<BenchTensor> tensor) {
    if (!tensor.ok()) {
      if (status_.ok()) status_ = tensor.status();
      return {};
    }
    kept_.push_back(*tensor);
    return tensor->view;
  }

  BenchDevice& device_;
  std::vector<BenchTensor>& kept_;
  Status status_;
};

Result<BenchProblem> make_op_problem(BenchDevice& device, const BenchSpec& spec, BenchRows rows);
Result<BenchProblem> make_layer_problem(BenchDevice& device, const BenchSpec& spec);

}  // namespace linestate::cli
