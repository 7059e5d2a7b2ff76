// Whole layers, through the backends as an engine calls them. The metadata of every batch is
// prepared before the clock runs: an engine prepares once for all layers.
#include <optional>
#include <utility>

#include "cli/bench/bench_problem_parts.h"
#include "linestate/backend.h"
#include "linestate/forward_batch.h"
#include "linestate/verify_records.h"

namespace linestate::cli {
namespace {

struct LayerParts {
  std::vector<BenchTensor> tensors;
  ModelConfig model;  // this one layer
  std::optional<StatePool> pool;
  std::vector<ForwardMetadata> batches;  // one a group of slots
  std::optional<VerifyRecords> records;
  std::optional<KdaBackend> kda;
  std::optional<LightningBackend> lightning;
  KdaLayerWeights kda_weights;
  std::vector<KdaLayerIo> kda_io;  // sets that calls take in turn
  LightningLayerWeights lightning_weights;
  std::vector<LightningLayerIo> lightning_io;
  ExecContext context;

  const ForwardMetadata& batch(int64_t call) const {
    return batches[static_cast<size_t>(call) % batches.size()];
  }
  Status run(int64_t call) const {
    const auto at = static_cast<size_t>(call);
    if (kda) {
      return kda->forward(0, kda_weights, batch(call), *pool, kda_io[at % kda_io.size()], context);
    }
    return lightning->forward(0, lightning_weights, batch(call), *pool,
                              lightning_io[at % lightning_io.size()], context);
  }
};

RowKind row_kind(BenchPhase phase) {
  if (phase == BenchPhase::kPrompt) return RowKind::kExtend;
  return phase == BenchPhase::kStep ? RowKind::kDecode : RowKind::kVerify;
}

Status make_pool(BenchDevice& device, const BenchSpec& spec, const BenchRows& rows,
                 LayerParts& parts) {
  parts.model.name = spec.model;
  parts.model.num_layers = spec.model_layers;
  parts.model.linear_layers = {spec.layer};
  Result<StatePool> pool = StatePool::create(
      make_pool_spec(parts.model, spec.state_dtype, spec.io_dtype), rows.slots, device.device());
  if (!pool.ok()) return pool.status();
  parts.pool = std::move(pool).value();
  LINESTATE_RETURN_IF_ERROR(device.write_normal(parts.pool->recurrent(0), 1.0, 0.0));
  if (!parts.pool->conv_window(0).defined()) return {};
  return device.write_normal(parts.pool->conv_window(0).transpose(1, 2), 1.0, 0.0);
}

Status make_batches(BenchDevice& device, const BenchSpec& spec, const BenchRows& bench_rows,
                    LayerParts& parts) {
  ForwardCapacity capacity;
  capacity.rows = bench_rows.rows;
  if (spec.op.phase == BenchPhase::kDraft) capacity.verify_tokens = spec.layout.total();
  for (int64_t group = 0; group < bench_rows.groups(); ++group) {
    Result<ForwardMetadata> metadata = ForwardMetadata::create(capacity, device.device());
    if (!metadata.ok()) return metadata.status();
    std::vector<Row> rows;
    for (int64_t n = 0; n < bench_rows.rows; ++n) {
      Row& row = rows.emplace_back();
      row.slot = static_cast<int32_t>(group * bench_rows.rows + n);
      row.kind = row_kind(spec.op.phase);
      row.start = start_of(spec.op.phase);
      row.tokens = spec.layout.tokens[static_cast<size_t>(n)];
    }
    ForwardBatch batch;
    batch.rows = rows;
    LINESTATE_RETURN_IF_ERROR(metadata->prepare(batch, *parts.pool, parts.context));
    parts.batches.push_back(std::move(metadata).value());
  }
  return {};
}

void make_kda_tensors(const BenchSpec& spec, const LayerWeightTensors& weights, int64_t sets,
                      TensorMaker& make, LayerParts& parts) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  const int64_t hv = heads.num_value_heads;
  parts.kda_weights.conv_weight = make.copy(weights.conv_weight);
  parts.kda_weights.A_log = make.copy(weights.A_log);
  parts.kda_weights.dt_bias = make.copy(weights.dt_bias);
  parts.kda_weights.norm_weight = make.copy(weights.norm_weight);
  const GateFill gate = gate_fill(spec);
  for (int64_t i = 0; i < sets; ++i) {
    KdaLayerIo io;
    io.qkv = make.normal(spec.io_dtype, {tokens, spec.layer.conv_channels()});
    io.gate = make.normal(spec.io_dtype, {tokens, hv, heads.k_dim}, gate.scale, gate.mean);
    io.beta = make.normal(spec.io_dtype, {tokens, hv});
    io.z = make.normal(spec.io_dtype, {tokens, hv, heads.v_dim});
    io.out = make.normal(spec.io_dtype, {tokens, hv, heads.v_dim});
    if (parts.records) {
      io.record = parts.records->kda(0);
      io.record_x = parts.records->kda_x(0);
    }
    parts.kda_io.push_back(io);
  }
}

void make_lightning_tensors(const BenchSpec& spec, const LayerWeightTensors& weights, int64_t sets,
                            TensorMaker& make, LayerParts& parts) {
  const int64_t heads = spec.layer.heads.num_heads;
  const int64_t dim = spec.layer.heads.k_dim;
  const int64_t tokens = spec.layout.total();
  parts.lightning_weights.slopes = make.copy(weights.slopes);
  parts.lightning_weights.norm_weight = make.copy(weights.norm_weight);
  for (int64_t i = 0; i < sets; ++i) {
    LightningLayerIo io;
    io.q = make.normal(spec.io_dtype, {tokens, heads, dim});
    io.k = make.normal(spec.io_dtype, {tokens, heads, dim}, 0.3);
    io.v = make.normal(spec.io_dtype, {tokens, heads, dim});
    io.gate = make.normal(spec.io_dtype, {tokens, heads, dim});
    io.out = make.normal(spec.io_dtype, {tokens, heads, dim});
    if (parts.records) io.record = parts.records->lightning(0);
    parts.lightning_io.push_back(io);
  }
}

// Backend, workspace, and the name of the attention operator's row.
Status make_backend(const BenchSpec& spec, TensorMaker& make, LayerParts& parts,
                    std::string& kernel) {
  KernelOptions options;
  options.base = spec.kernel;
  const int64_t tokens = spec.layout.total();
  Result<int64_t> bytes = int64_t{0};
  if (spec.layer.kind == LayerKind::kKda) {
    Result<KdaBackend> backend = KdaBackend::create(parts.model, options);
    if (!backend.ok()) return backend.status();
    parts.kda = std::move(backend).value();
    bytes = parts.kda->workspace_bytes(tokens, *parts.pool, parts.context);
  } else {
    Result<LightningBackend> backend = LightningBackend::create(parts.model, options);
    if (!backend.ok()) return backend.status();
    parts.lightning = std::move(backend).value();
    bytes = parts.lightning->workspace_bytes(tokens, *parts.pool, parts.context);
  }
  make.workspace(bytes, parts.context);
  LINESTATE_RETURN_IF_ERROR(make.status());
  const std::vector<KernelChoice> choices =
      parts.kda ? parts.kda->explain(0, parts.kda_weights, parts.batch(0), *parts.pool,
                                     parts.kda_io[0], parts.context)
                : parts.lightning->explain(0, parts.lightning_weights, parts.batch(0), *parts.pool,
                                           parts.lightning_io[0], parts.context);
  for (const KernelChoice& choice : choices) {
    const bool attention = choice.op.starts_with("kda_") || choice.op.starts_with("lightning_");
    if (attention) kernel = choice.kernel;
  }
  return {};
}

}  // namespace

Result<BenchProblem> make_layer_problem(BenchDevice& device, const BenchSpec& spec) {
  const Result<BenchRows> rows = make_bench_rows(device, spec);
  if (!rows.ok()) return rows.status();
  const Result<LayerWeightTensors> weights =
      make_weights(spec.layer, spec.model_layers, {}, spec.profile, 1);
  if (!weights.ok()) return weights.status();
  auto parts = std::make_shared<LayerParts>();
  parts->context = device.context(spec.threads);
  LINESTATE_RETURN_IF_ERROR(make_pool(device, spec, *rows, *parts));
  LINESTATE_RETURN_IF_ERROR(make_batches(device, spec, *rows, *parts));
  if (spec.op.phase == BenchPhase::kDraft) {
    Result<VerifyRecords> records =
        VerifyRecords::create(parts->model, spec.io_dtype, spec.layout.total(), device.device());
    if (!records.ok()) return records.status();
    parts->records = std::move(records).value();
  }
  TensorMaker make(device, parts->tensors);
  const int64_t sets = device.rotates_tokens() ? rows->groups() : 1;
  if (spec.layer.kind == LayerKind::kKda) {
    make_kda_tensors(spec, *weights, sets, make, *parts);
  } else {
    make_lightning_tensors(spec, *weights, sets, make, *parts);
  }
  LINESTATE_RETURN_IF_ERROR(make.status());
  BenchProblem problem;
  LINESTATE_RETURN_IF_ERROR(make_backend(spec, make, *parts, problem.kernel));
  problem.turn = rows->groups();
  problem.run = [parts](int64_t call) { return parts->run(call); };
  return problem;
}

}  // namespace linestate::cli
