/* One KDA layer over the C interface: a prompt of five tokens, then one decoded token. */
#include <stdio.h>
#include <stdlib.h>

#include "linestate/c_api.h"

enum { kHeads = 2, kValueHeads = 4, kDim = 16, kWidth = 4, kMaxTokens = 8 };
enum { kChannels = 2 * kHeads * kDim + kValueHeads * kDim };

/* Weights and activations; an engine passes pointers of its own. */
static float conv_weight[kChannels * kWidth], A_log[kValueHeads], dt_bias[kValueHeads * kDim];
static float qkv[kMaxTokens * kChannels], gate[kMaxTokens * kValueHeads * kDim];
static float beta[kMaxTokens * kValueHeads], out[kMaxTokens * kValueHeads * kDim];

static void check(ls_status status) {
  if (status == LS_OK) return;
  fprintf(stderr, "%s: %s\n", ls_status_name(status), ls_last_error());
  exit(1);
}

static void fill(float* values, size_t count, float scale) {
  for (size_t i = 0; i < count; ++i) values[i] = scale * (float)((i * 37 + 11) % 64) / 64.0f;
}

static void fill_all(void) {
  fill(conv_weight, sizeof conv_weight / sizeof *conv_weight, 0.5f);
  fill(dt_bias, sizeof dt_bias / sizeof *dt_bias, 1.0f);
  fill(qkv, sizeof qkv / sizeof *qkv, 1.0f);
  fill(gate, sizeof gate / sizeof *gate, 1.0f);
  fill(beta, sizeof beta / sizeof *beta, 1.0f);
}

static ls_tensor dense2(float* data, int64_t a, int64_t b) {
  const int64_t shape[] = {a, b};
  return ls_dense(data, LS_F32, 2, shape);
}

static ls_tensor dense3(float* data, int64_t a, int64_t b, int64_t c) {
  const int64_t shape[] = {a, b, c};
  return ls_dense(data, LS_F32, 3, shape);
}

/* [forward] */
static void forward(const ls_kda_backend* layer, ls_metadata* metadata, const ls_pool* pool,
                    const ls_row* row, const ls_context* context) {
  const int64_t heads[] = {kValueHeads};
  const int64_t tokens = row->tokens;
  ls_forward_batch batch;
  ls_kda_weights weights;
  ls_kda_io io;

  LS_INIT(&batch);
  batch.rows = row;
  batch.num_rows = 1;
  check(ls_metadata_prepare(metadata, &batch, pool, context)); /* once for all layers */

  LS_INIT(&weights);
  weights.conv_weight = dense2(conv_weight, kChannels, kWidth);
  weights.A_log = ls_dense(A_log, LS_F32, 1, heads);
  weights.dt_bias = dense2(dt_bias, kValueHeads, kDim);

  LS_INIT(&io);
  io.qkv = dense2(qkv, tokens, kChannels);
  io.gate = dense3(gate, tokens, kValueHeads, kDim);
  io.beta = dense2(beta, tokens, kValueHeads);
  io.out = dense3(out, tokens, kValueHeads, kDim);
  check(ls_kda_backend_forward(layer, 0, &weights, metadata, pool, &io, context, NULL));
}
/* [forward] */

int main(void) {
  ls_layer_spec spec;
  ls_pool_spec pool_spec;
  ls_forward_capacity capacity;
  ls_context context;
  ls_row row;
  char* memory;
  ls_model* model;
  ls_pool* pool;
  ls_metadata* metadata;
  ls_kda_backend* layer;

  fill_all();
  /* [setup] */
  LS_INIT(&spec);
  spec.kind = LS_LAYER_KDA;
  spec.num_heads = kHeads;
  spec.num_value_heads = kValueHeads;
  spec.k_dim = kDim;
  spec.conv_activation = LS_ACTIVATION_SILU;
  check(ls_model_from_layers(&spec, 1, 1, 0, 1, &model));

  LS_INIT(&pool_spec); /* f32 state and window */
  pool_spec.model = model;
  check(ls_pool_create(&pool_spec, 16, LS_CPU, 0, &pool));
  check(ls_kda_backend_create(model, NULL, &layer));

  LS_INIT(&capacity);
  capacity.rows = 1;
  check(ls_metadata_create(&capacity, LS_CPU, 0, &metadata));

  LS_INIT(&context);
  check(ls_kda_backend_workspace_bytes(layer, kMaxTokens, pool, &context, NULL,
                                       &context.workspace_bytes));
  memory = malloc((size_t)context.workspace_bytes + 64); /* a real program checks this */
  context.workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
  /* [setup] */

  LS_INIT(&row);
  check(ls_pool_allocate(pool, &row.slot));
  row.kind = LS_ROW_EXTEND;
  row.tokens = 5;
  row.num_valid = -1;
  forward(layer, metadata, pool, &row, &context);

  row.kind = LS_ROW_DECODE;
  row.start = 5;
  row.tokens = 1;
  forward(layer, metadata, pool, &row, &context);
  printf("first output of the sixth token: %f\n", (double)out[0]);

  free(memory);
  ls_metadata_destroy(metadata);
  ls_kda_backend_destroy(layer);
  ls_pool_destroy(pool);
  ls_model_destroy(model);
  return 0;
}
