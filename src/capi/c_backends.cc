#include "capi/handles.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

std::string text(const char* in) { return std::string(text_or_empty(in)); }

Status read_options(const ls_kernel_options* in, KernelOptions* out) {
  if (in == nullptr) return {};
  ls_kernel_options from{};
  LINESTATE_RETURN_IF_ERROR(load("options", in, &from));
  *out = {text(from.base),   text(from.conv),   text(from.prefill),
          text(from.decode), text(from.verify), text(from.norm)};
  return {};
}

void read(Reader& reader, const ls_kda_weights* in, KdaLayerWeights* out) {
  const ls_kda_weights from = reader.sized("weights", in);
  reader.tensor("weights.conv_weight", from.conv_weight, &out->conv_weight);
  reader.tensor("weights.conv_bias", from.conv_bias, &out->conv_bias);
  reader.tensor("weights.A_log", from.A_log, &out->A_log);
  reader.tensor("weights.dt_bias", from.dt_bias, &out->dt_bias);
  reader.tensor("weights.norm_weight", from.norm_weight, &out->norm_weight);
}

void read(Reader& reader, const ls_lightning_weights* in, LightningLayerWeights* out) {
  const ls_lightning_weights from = reader.sized("weights", in);
  reader.tensor("weights.slopes", from.slopes, &out->slopes);
  reader.tensor("weights.norm_weight", from.norm_weight, &out->norm_weight);
}

void read(Reader& reader, const ls_kda_io* in, KdaLayerIo* out) {
  const ls_kda_io from = reader.sized("io", in);
  if (from.record != nullptr) read(reader, from.record, &out->record);
  reader.tensor("io.record_x", from.record_x, &out->record_x);
  reader.tensor("io.qkv", from.qkv, &out->qkv);
  reader.tensor("io.gate", from.gate, &out->gate);
  reader.tensor("io.beta", from.beta, &out->beta);
  reader.tensor("io.z", from.z, &out->z);
  reader.tensor("io.out", from.out, &out->out);
}

void read(Reader& reader, const ls_lightning_io* in, LightningLayerIo* out) {
  const ls_lightning_io from = reader.sized("io", in);
  if (from.record != nullptr) read(reader, from.record, &out->record);
  reader.tensor("io.q", from.q, &out->q);
  reader.tensor("io.k", from.k, &out->k);
  reader.tensor("io.v", from.v, &out->v);
  reader.tensor("io.gate", from.gate, &out->gate);
  reader.tensor("io.out", from.out, &out->out);
}

void read(Reader& reader, const ls_kda_commit_io* in, KdaCommitIo* out) {
  const ls_kda_commit_io from = reader.sized("io", in);
  if (!reader.status().ok()) return;
  read(reader, from.record, &out->record);
  reader.tensor("io.record_x", from.record_x, &out->record_x);
  reader.tensor("io.accepted_node", from.accepted_node, &out->accepted_node);
}

void read(Reader& reader, const ls_lightning_commit_io* in, LightningCommitIo* out) {
  const ls_lightning_commit_io from = reader.sized("io", in);
  if (!reader.status().ok()) return;
  read(reader, from.record, &out->record);
  reader.tensor("io.accepted_node", from.accepted_node, &out->accepted_node);
}

template <typename Backend, typename Handle>
ls_status create(const ls_model* model, const ls_kernel_options* options, Handle** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    LINESTATE_RETURN_IF_ERROR(require({{"model", model}}));
    KernelOptions names;
    LINESTATE_RETURN_IF_ERROR(read_options(options, &names));
    return put_handle(out, Backend::create(model->config, std::move(names)));
  });
}

/// What forward and explain are called with.
template <typename Weights, typename Io>
struct LayerCall {
  Weights weights;
  Io io;
  ExecContext context;
};

/// Reads the arguments of a layer's call and hands them to `use(LayerCall)`.
template <typename Weights, typename Io, typename CWeights, typename CIo, typename Use>
ls_status call_layer(std::initializer_list<NamedPointer> handles, const CWeights* weights,
                     const CIo* io, const ls_context* context, const Use& use) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require(handles));
    Reader reader;
    LayerCall<Weights, Io> call;
    read(reader, weights, &call.weights);
    read(reader, io, &call.io);
    capi::read(reader, context, &call.context);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return use(call);
  });
}

Status put_choices(const std::vector<KernelChoice>& choices, char* buffer, size_t size,
                   size_t* needed) {
  std::string lines;
  for (const KernelChoice& choice : choices) lines += describe(choice);
  return put_text(lines, buffer, size, needed);
}

template <typename Handle>
ls_status put_workspace(const Handle* backend, int64_t max_tokens, const ls_pool* pool,
                        const ls_context* context, const char* kernel, int64_t* bytes) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"backend", backend}, {"pool", pool}}));
    Reader reader;
    ExecContext exec;
    capi::read(reader, context, &exec);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return put_result(
        "bytes", bytes,
        backend->backend.workspace_bytes(max_tokens, pool->pool, exec, text_or_empty(kernel)));
  });
}

}  // namespace

#define LS_DEFINE_BACKEND(kind, Kind)                                                             \
  ls_status ls_##kind##_backend_create(const ls_model* model, const ls_kernel_options* options,   \
                                       ls_##kind##_backend** out) {                               \
    return create<Kind##Backend>(model, options, out);                                            \
  }                                                                                               \
  void ls_##kind##_backend_destroy(ls_##kind##_backend* backend) { delete backend; }              \
  ls_status ls_##kind##_backend_workspace_bytes(                                                  \
      const ls_##kind##_backend* backend, int64_t max_tokens, const ls_pool* pool,                \
      const ls_context* context, const char* kernel, int64_t* bytes) {                            \
    return put_workspace(backend, max_tokens, pool, context, kernel, bytes);                      \
  }                                                                                               \
  ls_status ls_##kind##_backend_forward(                                                          \
      const ls_##kind##_backend* backend, int64_t pool_layer, const ls_##kind##_weights* weights, \
      const ls_metadata* metadata, const ls_pool* pool, const ls_##kind##_io* io,                 \
      const ls_context* context, const char* kernel) {                                            \
    return call_layer<Kind##LayerWeights, Kind##LayerIo>(                                         \
        {{"backend", backend}, {"metadata", metadata}, {"pool", pool}}, weights, io, context,     \
        [&](const auto& call) {                                                                   \
          return backend->backend.forward(pool_layer, call.weights, metadata->metadata,           \
                                          pool->pool, call.io, call.context,                      \
                                          text_or_empty(kernel));                                 \
        });                                                                                       \
  }                                                                                               \
  ls_status ls_##kind##_backend_explain(                                                          \
      const ls_##kind##_backend* backend, int64_t pool_layer, const ls_##kind##_weights* weights, \
      const ls_metadata* metadata, const ls_pool* pool, const ls_##kind##_io* io,                 \
      const ls_context* context, const char* kernel, char* buffer, size_t size, size_t* needed) { \
    return call_layer<Kind##LayerWeights, Kind##LayerIo>(                                         \
        {{"backend", backend}, {"metadata", metadata}, {"pool", pool}}, weights, io, context,     \
        [&](const auto& call) {                                                                   \
          return put_choices(                                                                     \
              backend->backend.explain(pool_layer, call.weights, metadata->metadata, pool->pool,  \
                                       call.io, call.context, text_or_empty(kernel)),             \
              buffer, size, needed);                                                              \
        });                                                                                       \
  }

LS_DEFINE_BACKEND(kda, Kda)
LS_DEFINE_BACKEND(lightning, Lightning)

ls_status ls_kda_backend_commit(const ls_kda_backend* backend, int64_t pool_layer,
                                const ls_metadata* metadata, const ls_pool* pool,
                                const ls_kda_commit_io* io, const ls_context* context,
                                const char* kernel) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(
        require({{"backend", backend}, {"metadata", metadata}, {"pool", pool}}));
    Reader reader;
    KdaCommitIo to;
    ExecContext exec;
    read(reader, io, &to);
    capi::read(reader, context, &exec);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return backend->backend.commit(pool_layer, metadata->metadata, pool->pool, to, exec,
                                   text_or_empty(kernel));
  });
}

ls_status ls_lightning_backend_commit(const ls_lightning_backend* backend, int64_t pool_layer,
                                      const ls_lightning_weights* weights,
                                      const ls_metadata* metadata, const ls_pool* pool,
                                      const ls_lightning_commit_io* io, const ls_context* context,
                                      const char* kernel) {
  return call_layer<LightningLayerWeights, LightningCommitIo>(
      {{"backend", backend}, {"metadata", metadata}, {"pool", pool}}, weights, io, context,
      [&](const auto& call) {
        return backend->backend.commit(pool_layer, call.weights, metadata->metadata, pool->pool,
                                       call.io, call.context, text_or_empty(kernel));
      });
}

ls_status ls_records_bytes_per_token(const ls_model* model, int32_t io_dtype, int64_t* bytes) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"model", model}}));
    Reader reader;
    DType dtype{};
    reader.choice("io_dtype", io_dtype, DType::kF16, &dtype);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return put("bytes", bytes, VerifyRecords::bytes_per_token(model->config, dtype));
  });
}

ls_status ls_records_create(const ls_model* model, int32_t io_dtype, int64_t max_tokens,
                            int32_t device_type, int32_t device_index, ls_records** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    LINESTATE_RETURN_IF_ERROR(require({{"model", model}}));
    Reader reader;
    DType dtype{};
    reader.choice("io_dtype", io_dtype, DType::kF16, &dtype);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    Result<VerifyRecords> made = VerifyRecords::create(model->config, dtype, max_tokens, *device);
    if (!made.ok()) return made.status();
    std::vector<LayerKind> kinds;
    for (const LayerSpec& layer : model->config.linear_layers) kinds.push_back(layer.kind);
    *out = new ls_records{std::move(*made), std::move(kinds)};
    return {};
  });
}

void ls_records_destroy(ls_records* records) { delete records; }

namespace {

Status check_record(const ls_records* records, int64_t index, LayerKind kind) {
  LINESTATE_RETURN_IF_ERROR(require({{"records", records}}));
  const auto count = static_cast<int64_t>(records->kinds.size());
  if (index < 0 || index >= count) {
    return invalid_argument("index: expected 0 to ", count - 1, ", got ", index);
  }
  if (records->kinds[static_cast<size_t>(index)] == kind) return {};
  return invalid_argument("index: expected a ", layer_kind_name(kind), " layer, got ", index);
}

}  // namespace

ls_status ls_records_kda(const ls_records* records, int64_t index, ls_kda_record* record,
                         ls_tensor* record_x) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_record(records, index, LayerKind::kKda));
    const KdaRecord from = records->records.kda(index);
    const ls_kda_record to{sizeof(to), to_c(from.u), to_c(from.k), to_c(from.k_inverse_norm),
                           to_c(from.alpha)};
    LINESTATE_RETURN_IF_ERROR(store("record", to, record));
    return put("record_x", record_x, to_c(records->records.kda_x(index)));
  });
}

ls_status ls_records_lightning(const ls_records* records, int64_t index,
                               ls_lightning_record* record) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_record(records, index, LayerKind::kLightning));
    const LightningRecord from = records->records.lightning(index);
    return store("record",
                 ls_lightning_record{sizeof(ls_lightning_record), to_c(from.k), to_c(from.v)},
                 record);
  });
}
