#include "tests/c_engine.h"

int g_checks = 0;
int g_failures = 0;

float conv_weight[kChannels * kW], A_log[kHV], dt_bias[kHV * kD], norm_weight[kD];
float qkv[kTokens * kChannels], gate[kTokens * kKdaOut], beta[kTokens * kHV];
float z[kTokens * kKdaOut], slopes[kH];
float q[kTokens * kLightningOut], k[kTokens * kLightningOut], v[kTokens * kLightningOut];

void fill(float* values, size_t count, uint32_t seed, float scale) {
  uint32_t x = seed * 2654435761u + 1u;
  for (size_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    values[i] = scale * ((float)(x >> 8) / 8388608.0f - 1.0f);
  }
}

ls_tensor dense(void* data, int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c) {
  const int64_t shape[] = {a, b, c};
  return ls_dense(data, dtype, rank, shape);
}

void fill_all(void) {
  FILL(conv_weight, 1, 0.5f);
  FILL(A_log, 2, 0.3f);
  FILL(dt_bias, 3, 1.0f);
  FILL(norm_weight, 4, 1.0f);
  FILL(qkv, 5, 1.0f);
  FILL(gate, 6, 1.0f);
  FILL(beta, 7, 1.0f);
  FILL(z, 8, 1.0f);
  FILL(q, 9, 1.0f);
  FILL(k, 10, 1.0f);
  FILL(v, 11, 1.0f);
  OK(ls_lightning_slopes(kH, 1, 2, 0, 1, LS_SLOPE_LAYER_OVER_LAST, slopes, kH));
}

void describe_layers(ls_layer_spec layers[2]) {
  LS_INIT(&layers[0]);
  layers[0].kind = LS_LAYER_KDA;
  layers[0].num_heads = kH;
  layers[0].num_value_heads = kHV;
  layers[0].k_dim = kD;
  layers[0].conv_activation = LS_ACTIVATION_SILU;
  LS_INIT(&layers[1]);
  layers[1].kind = LS_LAYER_LIGHTNING;
  layers[1].layer_id = 1;
  layers[1].num_heads = kH;
  layers[1].k_dim = kD;
}

/* Everything, with the kernel rows called `kernel`. */
engine make_engine(const char* kernel) {
  engine e;
  ls_layer_spec layers[2];
  ls_pool_spec spec;
  ls_forward_capacity capacity;
  ls_kernel_options options;
  int64_t lightning_bytes = 0;
  memset(&e, 0, sizeof e);
  describe_layers(layers);
  OK(ls_model_from_layers(layers, 2, 2, 0, 1, &e.model));
  LS_INIT(&spec);
  spec.model = e.model;
  OK(ls_pool_create(&spec, kSlots, LS_CPU, 0, &e.pool));
  LS_INIT(&capacity);
  capacity.rows = 2;
  capacity.verify_tokens = kTokens;
  capacity.snapshots = 1;
  OK(ls_metadata_create(&capacity, LS_CPU, 0, &e.metadata));
  OK(ls_records_create(e.model, LS_F32, kTokens, LS_CPU, 0, &e.records));
  LS_INIT(&options);
  options.base = kernel;
  OK(ls_kda_backend_create(e.model, &options, &e.kda));
  OK(ls_lightning_backend_create(e.model, &options, &e.lightning));
  LS_INIT(&e.context);
  OK(ls_kda_backend_workspace_bytes(e.kda, kTokens, e.pool, &e.context, NULL,
                                    &e.context.workspace_bytes));
  OK(ls_lightning_backend_workspace_bytes(e.lightning, kTokens, e.pool, &e.context, NULL,
                                          &lightning_bytes));
  if (lightning_bytes > e.context.workspace_bytes) e.context.workspace_bytes = lightning_bytes;
  e.memory = malloc((size_t)e.context.workspace_bytes + 64);
  e.context.workspace = (char*)e.memory + (64 - (uintptr_t)e.memory % 64) % 64;
  return e;
}

void end_engine(engine* e) {
  free(e->memory);
  ls_lightning_backend_destroy(e->lightning);
  ls_kda_backend_destroy(e->kda);
  ls_records_destroy(e->records);
  ls_metadata_destroy(e->metadata);
  ls_pool_destroy(e->pool);
  ls_model_destroy(e->model);
}

ls_row row_of(int32_t slot, int32_t kind, int64_t start, int32_t tokens) {
  ls_row row;
  LS_INIT(&row);
  row.slot = slot;
  row.kind = kind;
  row.start = start;
  row.tokens = tokens;
  row.num_valid = -1;
  return row;
}

ls_kda_weights kda_weights(void) {
  ls_kda_weights weights;
  LS_INIT(&weights);
  weights.conv_weight = dense(conv_weight, LS_F32, 2, kChannels, kW, 0);
  weights.A_log = dense(A_log, LS_F32, 1, kHV, 0, 0);
  weights.dt_bias = dense(dt_bias, LS_F32, 2, kHV, kD, 0);
  weights.norm_weight = dense(norm_weight, LS_F32, 1, kD, 0, 0);
  return weights;
}

ls_lightning_weights lightning_weights(void) {
  ls_lightning_weights weights;
  LS_INIT(&weights);
  weights.slopes = dense(slopes, LS_F32, 1, kH, 0, 0);
  return weights;
}

ls_kda_io kda_io(int64_t at, int64_t n, outputs* out) {
  ls_kda_io io;
  LS_INIT(&io);
  io.qkv = dense(qkv + at * kChannels, LS_F32, 2, n, kChannels, 0);
  io.gate = dense(gate + at * kKdaOut, LS_F32, 3, n, kHV, kD);
  io.beta = dense(beta + at * kHV, LS_F32, 2, n, kHV, 0);
  io.z = dense(z + at * kKdaOut, LS_F32, 3, n, kHV, kD);
  io.out = dense(out->kda + at * kKdaOut, LS_F32, 3, n, kHV, kD);
  return io;
}

ls_lightning_io lightning_io(int64_t at, int64_t n, outputs* out) {
  ls_lightning_io io;
  LS_INIT(&io);
  io.q = dense(q + at * kLightningOut, LS_F32, 3, n, kH, kD);
  io.k = dense(k + at * kLightningOut, LS_F32, 3, n, kH, kD);
  io.v = dense(v + at * kLightningOut, LS_F32, 3, n, kH, kD);
  io.out = dense(out->lightning + at * kLightningOut, LS_F32, 3, n, kH, kD);
  return io;
}

void prepare(engine* e, const ls_row* row) {
  ls_forward_batch batch;
  LS_INIT(&batch);
  batch.rows = row;
  batch.num_rows = 1;
  OK(ls_metadata_prepare(e->metadata, &batch, e->pool, &e->context));
}

static void load_records(const engine* e, ls_kda_record* kda, ls_tensor* kda_x,
                         ls_lightning_record* lightning) {
  LS_INIT(kda);
  LS_INIT(lightning);
  OK(ls_records_kda(e->records, 0, kda, kda_x));
  OK(ls_records_lightning(e->records, 1, lightning));
}

/* Tokens [start, start + tokens) of the stream through both layers. */
void run(engine* e, ls_row row, outputs* out) {
  const ls_kda_weights kda = kda_weights();
  const ls_lightning_weights lightning = lightning_weights();
  ls_kda_io first = kda_io(row.start, row.tokens, out);
  ls_lightning_io second = lightning_io(row.start, row.tokens, out);
  ls_kda_record kda_record;
  ls_lightning_record lightning_record;
  prepare(e, &row);
  if (row.kind == LS_ROW_VERIFY) {
    load_records(e, &kda_record, &first.record_x, &lightning_record);
    first.record = &kda_record;
    second.record = &lightning_record;
  }
  OK(ls_kda_backend_forward(e->kda, 0, &kda, e->metadata, e->pool, &first, &e->context, NULL));
  OK(ls_lightning_backend_forward(e->lightning, 1, &lightning, e->metadata, e->pool, &second,
                                  &e->context, NULL));
}

void commit(engine* e, int32_t accepted) {
  const ls_lightning_weights weights = lightning_weights();
  ls_kda_commit_io first;
  ls_lightning_commit_io second;
  ls_kda_record kda_record;
  ls_lightning_record lightning_record;
  LS_INIT(&first);
  LS_INIT(&second);
  load_records(e, &kda_record, &first.record_x, &lightning_record);
  first.record = &kda_record;
  second.record = &lightning_record;
  first.accepted_node = second.accepted_node = dense(&accepted, LS_I32, 1, 1, 0, 0);
  OK(ls_kda_backend_commit(e->kda, 0, e->metadata, e->pool, &first, &e->context, NULL));
  OK(ls_lightning_backend_commit(e->lightning, 1, &weights, e->metadata, e->pool, &second,
                                 &e->context, NULL));
}

bool same_state(const engine* e, int32_t a, int32_t b) {
  ls_tensor view;
  bool same = true;
  size_t bytes;
  for (int64_t layer = 0; layer < 2; ++layer) {
    OK(ls_pool_recurrent(e->pool, layer, &view));
    bytes = (size_t)(view.stride[0] * 4);
    same = same && memcmp((char*)view.data + a * bytes, (char*)view.data + b * bytes, bytes) == 0;
  }
  OK(ls_pool_conv_window(e->pool, 1, &view));
  CHECK(view.rank == 0);
  OK(ls_pool_conv_window(e->pool, 0, &view));
  bytes = (size_t)(view.stride[0] * 4);
  return same && memcmp((char*)view.data + a * bytes, (char*)view.data + b * bytes, bytes) == 0;
}

int report(void) {
  printf("%d checks, %d failures\n", g_checks, g_failures);
  return g_failures == 0 ? 0 : 1;
}
