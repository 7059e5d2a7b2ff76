#include "cli/explain.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cli/exit_codes.h"
#include "cli/replay/engine.h"
#include "cli/replay/layer_buffers.h"
#include "cli/replay/layer_stack.h"
#include "cli/replay/settings.h"
#include "linestate/ops/state_ops.h"

namespace linestate::cli {
namespace {

struct Problem {
  DeviceChoice device;
  ModelConfig model;
  DType io_dtype = DType::kBF16;
  DType state_dtype = DType::kF32;
};

Status check_count(const char* option, int64_t value, int64_t high) {
  if (value >= 1 && value <= high) return {};
  return Status(StatusCode::kInvalidArgument, std::string(option) + ": expected 1 to " +
                                                  std::to_string(high) + ", got " +
                                                  std::to_string(value));
}

Status check_op(const std::string& op) {
  std::set<std::string> names{"all"};
  for (const KernelInfo& info : list_kernels()) names.insert(info.op);
  if (names.count(op) != 0) return {};
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return Status(StatusCode::kNotFound, "--op: expected one of " + list + ", got " + op);
}

Result<Problem> resolve(const ExplainOptions& options) {
  LINESTATE_RETURN_IF_ERROR(check_count("--rows", options.rows, 4096));
  LINESTATE_RETURN_IF_ERROR(check_count("--tokens", options.tokens, 1 << 20));
  if (options.layers < 0) LINESTATE_RETURN_IF_ERROR(check_count("--layers", options.layers, 4096));
  LINESTATE_RETURN_IF_ERROR(check_op(options.op));
  LINESTATE_RETURN_IF_ERROR(check_kernel_name(options.kernel));
  Problem problem;
  Result<DeviceChoice> device = choose_device(options.device, options.kernel);
  if (!device.ok()) return device.status();
  problem.device = std::move(device).value();
  Result<DType> io = parse_dtype("--dtype", options.dtype);
  if (!io.ok()) return io.status();
  Result<DType> state = parse_dtype("--state-dtype", options.state_dtype);
  if (!state.ok()) return state.status();
  Result<ModelConfig> model = resolve_model(options.model, options.layers);
  if (!model.ok()) return model.status();
  problem.io_dtype = *io;
  problem.state_dtype = *state;
  problem.model = std::move(model).value();
  return problem;
}

// `rows` extend rows of `tokens` tokens, then as many decode rows.
std::vector<Row> describe_batch(const ExplainOptions& options) {
  std::vector<Row> rows;
  for (int64_t i = 0; i < 2 * options.rows; ++i) {
    const bool decode = i >= options.rows;
    Row row;
    row.slot = static_cast<int32_t>(i);
    row.kind = decode ? RowKind::kDecode : RowKind::kExtend;
    row.start = decode ? options.tokens : 0;
    row.tokens = decode ? 1 : static_cast<int32_t>(options.tokens);
    rows.push_back(row);
  }
  return rows;
}

// Equal answers of several layers are told once.
class Answers {
 public:
  void add(const KernelChoice& choice, int32_t layer) {
    std::string text = describe(choice);
    if (!choice.problem.empty() && text.find(choice.problem) == std::string::npos) {
      text += "  " + choice.problem + "\n";
    }
    std::vector<int32_t>& layers = layers_[text];
    if (layers.empty()) order_.push_back(text);
    if (layer >= 0 && (layers.empty() || layers.back() != layer)) layers.push_back(layer);
  }

  void print() const {
    for (const std::string& text : order_) {
      std::fputs(text.c_str(), stdout);
      if (text.empty() || text.back() != '\n') std::fputc('\n', stdout);
      const std::vector<int32_t>& layers = layers_.at(text);
      if (layers.empty()) continue;
      std::printf("  layers");
      for (const int32_t layer : layers) std::printf(" %d", layer);
      std::printf("\n");
    }
  }
  bool empty() const { return order_.empty(); }

 private:
  std::vector<std::string> order_;
  std::map<std::string, std::vector<int32_t>> layers_;
};

void add_state_ops(const StatePool& pool, const ExecContext& context, const std::string& kernel,
                   const std::string& op, Answers& answers) {
  const int32_t slot_ids[2] = {0, 1};
  // Only shapes are looked at.
  const ConstTensorView first(slot_ids, DType::kI32, {1}, context.device);
  const ConstTensorView second(slot_ids + 1, DType::kI32, {1}, context.device);
  std::vector<ConstTensorView> sources(pool.planes().begin(), pool.planes().end());
  if (op == "all" || op == "state_clear") {
    answers.add(explain_state_clear({pool.planes(), first}, context, kernel), -1);
  }
  if (op == "all" || op == "state_copy") {
    answers.add(explain_state_copy({sources, pool.planes(), first, second}, context, kernel), -1);
  }
}

Status explain(const ExplainOptions& options, const Problem& problem, Answers& answers) {
  const int64_t tokens = options.rows * (options.tokens + 1);
  const PoolSpec spec = make_pool_spec(problem.model, problem.state_dtype, problem.io_dtype);
  LINESTATE_RETURN_IF_ERROR(check_memory(
      2 * options.rows * bytes_per_slot(spec) +
          LayerBuffers::bytes(problem.model, tokens, problem.io_dtype, problem.io_dtype),
      available_memory()));
  Result<LayerStack> stack = make_layer_stack(problem.model, {});
  if (!stack.ok()) return stack.status();
  Result<StatePool> pool = StatePool::create(spec, 2 * options.rows, problem.device.device);
  if (!pool.ok()) return pool.status();
  ExecContext context;
  context.device = problem.device.device;
  Result<LayerRunner> runner = LayerRunner::create(*stack, options.kernel, tokens, *pool, context);
  if (!runner.ok()) return runner.status();
  Result<ForwardMetadata> metadata =
      ForwardMetadata::create(2 * options.rows, problem.device.device);
  if (!metadata.ok()) return metadata.status();
  const std::vector<Row> rows = describe_batch(options);
  ForwardBatch batch;
  batch.rows = rows;
  LINESTATE_RETURN_IF_ERROR(metadata->prepare(batch, *pool, context));
  LayerBuffers buffers(stack->model, tokens, problem.io_dtype, problem.io_dtype);
  LINESTATE_RETURN_IF_ERROR(buffers.use_device(problem.device.device));
  for (int64_t layer = 0; layer < stack->num_layers(); ++layer) {
    buffers.shape_for(stack->layer(layer), tokens);
    for (const KernelChoice& choice : runner->explain(layer, *metadata, *pool, buffers)) {
      if (options.op != "all" && choice.op != options.op) continue;
      answers.add(choice, stack->layer(layer).layer_id);
    }
  }
  add_state_ops(*pool, context, options.kernel, options.op, answers);
  return {};
}

}  // namespace

int run_explain(const ExplainOptions& options) {
  const Result<Problem> problem = resolve(options);
  if (!problem.ok()) return fail(problem.status());
  Answers answers;
  const Status status = explain(options, *problem, answers);
  if (!status.ok()) return fail(status);
  std::printf("%s: %lld extend rows of %lld tokens and %lld decode rows, io %s, state %s, on %s\n",
              options.model.c_str(), static_cast<long long>(options.rows),
              static_cast<long long>(options.tokens), static_cast<long long>(options.rows),
              options.dtype.c_str(), options.state_dtype.c_str(), problem->device.text.c_str());
  answers.print();
  if (answers.empty()) std::printf("%s does not run in this model\n", options.op.c_str());
  return kOkExitCode;
}

}  // namespace linestate::cli
