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

/// What a closure over an operator's problem keeps alive.
struct OpParts {
  std::vector<BenchTensor> tensors;
  BenchRows rows;
  ExecContext context;
  std::string kernel;
  int64_t sets = 1;  // of inputs and outputs that calls take in turn
};
using SharedParts = std::shared_ptr<OpParts>;

/// What a spec's gate tensor holds: the numbers that its weights were made for.
struct GateFill {
  double scale = 1.0;
  double mean = -1.0;
};
GateFill gate_fill(const BenchSpec& spec);

/// The functions of one operator. `workspace_bytes` may be null.
template <typename Params>
struct OpFunctions {
  Status (*run)(const Params&, const ExecContext&, std::string_view);
  KernelChoice (*explain)(const Params&, const ExecContext&, std::string_view);
  Result<int64_t> (*workspace_bytes)(const Params&, const ExecContext&, std::string_view);
};

/// The problem of an operator. `make_params` makes one set of inputs and outputs, `set_call` puts
/// rows and slots of a call into it.
template <typename Params, typename MakeParams, typename SetCall>
BenchProblem finish(const SharedParts& parts, TensorMaker& make, const MakeParams& make_params,
                    const SetCall& set_call, const OpFunctions<Params>& op) {
  std::vector<Params> sets;
  for (int64_t i = 0; i < parts->sets; ++i) sets.push_back(make_params());
  BenchProblem problem;
  if (!make.status().ok()) return problem;
  set_call(sets[0], 0);
  if (op.workspace_bytes != nullptr) {
    make.workspace(op.workspace_bytes(sets[0], parts->context, parts->kernel), parts->context);
  }
  problem.kernel = op.explain(sets[0], parts->context, parts->kernel).kernel;
  problem.turn = parts->rows.groups();
  problem.run = [parts, sets = std::move(sets), set_call, run = op.run](int64_t call) mutable {
    Params& params = sets[static_cast<size_t>(call) % sets.size()];
    set_call(params, call);
    return run(params, parts->context, parts->kernel);
  };
  return problem;
}

/// Tokens, gate and weights as the spec asks for them; the state is shared by all sets.
KdaParams kda_params(TensorMaker& make, const BenchSpec& spec, const KdaParams& shared);
LightningParams lightning_params(TensorMaker& make, const BenchSpec& spec,
                                 const LightningParams& shared);
/// Weights and state of one layer.
KdaParams shared_kda_params(TensorMaker& make, const BenchSpec& spec,
                            const LayerWeightTensors& weights, int64_t slots);
LightningParams shared_lightning_params(TensorMaker& make, const BenchSpec& spec,
                                        const LayerWeightTensors& weights, int64_t slots);
/// Windows as pools hold them, [slots, channels, W-1] over tap-major memory.
TensorView make_windows(TensorMaker& make, const BenchSpec& spec, int64_t slots);

BenchProblem commit_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                            const LayerWeightTensors& weights);
BenchProblem ring_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                          const LayerWeightTensors& weights);
BenchProblem state_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec);
BenchProblem conv_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                          const LayerWeightTensors& weights);
BenchProblem norm_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                          const LayerWeightTensors& weights);

Result<BenchProblem> make_op_problem(BenchDevice& device, const BenchSpec& spec, BenchRows rows);
Result<BenchProblem> make_layer_problem(BenchDevice& device, const BenchSpec& spec);

}  // namespace linestate::cli
