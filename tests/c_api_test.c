/* The C interface from C: a request through every phase, and what misuse answers. */
#include "linestate/c_api.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int g_checks = 0;
static int g_failures = 0;

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    ++g_checks;                                                                                \
    if (!(condition)) {                                                                        \
      ++g_failures;                                                                            \
      printf("%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, ls_last_error()); \
    }                                                                                          \
  } while (0)
#define OK(call) CHECK((call) == LS_OK)
/* The code, and a text that has `part` in it. */
#define FAILS(code, part, call)                                                             \
  do {                                                                                      \
    const ls_status got_ = (call);                                                          \
    ++g_checks;                                                                             \
    if (got_ != (code) || strstr(ls_last_error(), (part)) == NULL) {                        \
      ++g_failures;                                                                         \
      printf("%s:%d: %s: expected %s with \"%s\", got %s: %s\n", __FILE__, __LINE__, #call, \
             ls_status_name(code), (part), ls_status_name(got_), ls_last_error());          \
    }                                                                                       \
  } while (0)

enum { kH = 2, kHV = 4, kD = 16, kW = 4, kTokens = 8, kSlots = 4 };
enum { kChannels = 2 * kH * kD + kHV * kD, kKdaOut = kHV * kD, kLightningOut = kH * kD };

/* The token stream of one request, and weights. */
static float conv_weight[kChannels * kW], A_log[kHV], dt_bias[kHV * kD], norm_weight[kD];
static float qkv[kTokens * kChannels], gate[kTokens * kKdaOut], beta[kTokens * kHV];
static float z[kTokens * kKdaOut], slopes[kH];
static float q[kTokens * kLightningOut], k[kTokens * kLightningOut], v[kTokens * kLightningOut];

typedef struct outputs {
  float kda[kTokens * kKdaOut];
  float lightning[kTokens * kLightningOut];
} outputs;

typedef struct engine {
  ls_model* model;
  ls_pool* pool;
  ls_metadata* metadata;
  ls_records* records;
  ls_kda_backend* kda;
  ls_lightning_backend* lightning;
  ls_context context;
  void* memory;
} engine;

static void fill(float* values, size_t count, uint32_t seed, float scale) {
  uint32_t x = seed * 2654435761u + 1u;
  for (size_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    values[i] = scale * ((float)(x >> 8) / 8388608.0f - 1.0f);
  }
}

#define FILL(array, seed, scale) fill((array), sizeof(array) / sizeof *(array), (seed), (scale))

static ls_tensor dense(void* data, int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c) {
  const int64_t shape[] = {a, b, c};
  return ls_dense(data, dtype, rank, shape);
}

static void fill_all(void) {
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

static void describe_layers(ls_layer_spec layers[2]) {
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
static engine make_engine(const char* kernel) {
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

static void end_engine(engine* e) {
  free(e->memory);
  ls_lightning_backend_destroy(e->lightning);
  ls_kda_backend_destroy(e->kda);
  ls_records_destroy(e->records);
  ls_metadata_destroy(e->metadata);
  ls_pool_destroy(e->pool);
  ls_model_destroy(e->model);
}

static ls_row row_of(int32_t slot, int32_t kind, int64_t start, int32_t tokens) {
  ls_row row;
  LS_INIT(&row);
  row.slot = slot;
  row.kind = kind;
  row.start = start;
  row.tokens = tokens;
  row.num_valid = -1;
  return row;
}

static ls_kda_weights kda_weights(void) {
  ls_kda_weights weights;
  LS_INIT(&weights);
  weights.conv_weight = dense(conv_weight, LS_F32, 2, kChannels, kW, 0);
  weights.A_log = dense(A_log, LS_F32, 1, kHV, 0, 0);
  weights.dt_bias = dense(dt_bias, LS_F32, 2, kHV, kD, 0);
  weights.norm_weight = dense(norm_weight, LS_F32, 1, kD, 0, 0);
  return weights;
}

static ls_lightning_weights lightning_weights(void) {
  ls_lightning_weights weights;
  LS_INIT(&weights);
  weights.slopes = dense(slopes, LS_F32, 1, kH, 0, 0);
  return weights;
}

static ls_kda_io kda_io(int64_t at, int64_t n, outputs* out) {
  ls_kda_io io;
  LS_INIT(&io);
  io.qkv = dense(qkv + at * kChannels, LS_F32, 2, n, kChannels, 0);
  io.gate = dense(gate + at * kKdaOut, LS_F32, 3, n, kHV, kD);
  io.beta = dense(beta + at * kHV, LS_F32, 2, n, kHV, 0);
  io.z = dense(z + at * kKdaOut, LS_F32, 3, n, kHV, kD);
  io.out = dense(out->kda + at * kKdaOut, LS_F32, 3, n, kHV, kD);
  return io;
}

static ls_lightning_io lightning_io(int64_t at, int64_t n, outputs* out) {
  ls_lightning_io io;
  LS_INIT(&io);
  io.q = dense(q + at * kLightningOut, LS_F32, 3, n, kH, kD);
  io.k = dense(k + at * kLightningOut, LS_F32, 3, n, kH, kD);
  io.v = dense(v + at * kLightningOut, LS_F32, 3, n, kH, kD);
  io.out = dense(out->lightning + at * kLightningOut, LS_F32, 3, n, kH, kD);
  return io;
}

static void prepare(engine* e, const ls_row* row) {
  ls_forward_batch batch;
  LS_INIT(&batch);
  batch.rows = row;
  batch.num_rows = 1;
  OK(ls_metadata_prepare(e->metadata, &batch, e->pool, &e->context));
}

/* Tokens [start, start + tokens) of the stream through both layers. */
static void run(engine* e, ls_row row, outputs* out) {
  const ls_kda_weights kda = kda_weights();
  const ls_lightning_weights lightning = lightning_weights();
  ls_kda_io first = kda_io(row.start, row.tokens, out);
  ls_lightning_io second = lightning_io(row.start, row.tokens, out);
  ls_kda_record kda_record;
  ls_lightning_record lightning_record;
  prepare(e, &row);
  if (row.kind == LS_ROW_VERIFY) {
    LS_INIT(&kda_record);
    LS_INIT(&lightning_record);
    OK(ls_records_kda(e->records, 0, &kda_record, &first.record_x));
    OK(ls_records_lightning(e->records, 1, &lightning_record));
    first.record = &kda_record;
    second.record = &lightning_record;
  }
  OK(ls_kda_backend_forward(e->kda, 0, &kda, e->metadata, e->pool, &first, &e->context, NULL));
  OK(ls_lightning_backend_forward(e->lightning, 1, &lightning, e->metadata, e->pool, &second,
                                  &e->context, NULL));
}

static void commit(engine* e, int32_t accepted) {
  const ls_lightning_weights weights = lightning_weights();
  ls_kda_commit_io first;
  ls_lightning_commit_io second;
  ls_kda_record kda_record;
  ls_lightning_record lightning_record;
  LS_INIT(&first);
  LS_INIT(&second);
  LS_INIT(&kda_record);
  LS_INIT(&lightning_record);
  OK(ls_records_kda(e->records, 0, &kda_record, &first.record_x));
  OK(ls_records_lightning(e->records, 1, &lightning_record));
  first.record = &kda_record;
  second.record = &lightning_record;
  first.accepted_node = second.accepted_node = dense(&accepted, LS_I32, 1, 1, 0, 0);
  OK(ls_kda_backend_commit(e->kda, 0, e->metadata, e->pool, &first, &e->context, NULL));
  OK(ls_lightning_backend_commit(e->lightning, 1, &weights, e->metadata, e->pool, &second,
                                 &e->context, NULL));
}

static bool same_state(const engine* e, int32_t a, int32_t b) {
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

/* Prefill, decodes, and prefill + verify + commit give the same bits on `ref`. */
static void test_phases_agree(void) {
  static outputs prefill, decode, verify;
  engine e = make_engine("ref");
  ls_batch_counts counts;
  float sum = 0.0f;
  run(&e, row_of(0, LS_ROW_EXTEND, 0, kTokens), &prefill);
  LS_INIT(&counts);
  OK(ls_metadata_counts(e.metadata, &counts));
  CHECK(counts.num_tokens == kTokens && counts.num_prefills == 1 && counts.num_decodes == 0);
  run(&e, row_of(1, LS_ROW_EXTEND, 0, 1), &decode);
  for (int t = 1; t < kTokens; ++t) run(&e, row_of(1, LS_ROW_DECODE, t, 1), &decode);
  run(&e, row_of(2, LS_ROW_EXTEND, 0, 3), &verify);
  run(&e, row_of(2, LS_ROW_VERIFY, 3, kTokens - 3), &verify);
  CHECK(!same_state(&e, 0, 2)); /* verify leaves the pool */
  commit(&e, kTokens - 3 - 1);
  CHECK(memcmp(&prefill, &decode, sizeof prefill) == 0);
  CHECK(memcmp(&prefill, &verify, sizeof prefill) == 0);
  CHECK(same_state(&e, 0, 1));
  CHECK(same_state(&e, 0, 2));
  for (int i = 0; i < kTokens * kKdaOut; ++i) sum += fabsf(prefill.kda[i]);
  for (int i = 0; i < kTokens * kLightningOut; ++i) sum += fabsf(prefill.lightning[i]);
  CHECK(isfinite(sum) && sum > 1.0f);
  end_engine(&e);
}

static void test_pool(void) {
  engine e = make_engine(NULL);
  int32_t slot = -7, flag = -1;
  int64_t count = 0, position = 0;
  OK(ls_pool_num_slots(e.pool, &count));
  CHECK(count == kSlots);
  OK(ls_pool_allocate(e.pool, &slot));
  CHECK(slot == 0);
  FAILS(LS_FAILED_PRECONDITION, "snapshot", ls_pool_snapshot_position(e.pool, slot, &position));
  OK(ls_pool_mark_snapshot(e.pool, slot, 64));
  OK(ls_pool_snapshot_position(e.pool, slot, &position));
  CHECK(position == 64);
  OK(ls_pool_clear_snapshot(e.pool, slot));
  OK(ls_pool_allocated(e.pool, slot, &flag));
  CHECK(flag == 1);
  OK(ls_pool_free(e.pool, slot));
  FAILS(LS_INVALID_ARGUMENT, "slot", ls_pool_free(e.pool, slot));
  for (int i = 0; i < kSlots; ++i) OK(ls_pool_allocate(e.pool, &slot));
  FAILS(LS_RESOURCE_EXHAUSTED, "slot", ls_pool_allocate(e.pool, &slot));
  OK(ls_pool_release_memory(e.pool));
  FAILS(LS_FAILED_PRECONDITION, "pool", ls_pool_recurrent(e.pool, 0, &(ls_tensor){0}));
  OK(ls_pool_memory_bound(e.pool, &flag));
  CHECK(flag == 0);
  OK(ls_pool_rebind_memory(e.pool));
  FAILS(LS_INVALID_ARGUMENT, "index", ls_pool_recurrent(e.pool, 2, &(ls_tensor){0}));
  end_engine(&e);
}

static bool flag_done(void* handle) { return *(int*)handle != 0; }

static void test_retire(void) {
  engine e = make_engine(NULL);
  int done = 0;
  int32_t slot = 0;
  int64_t count = 0;
  OK(ls_pool_allocate(e.pool, &slot));
  OK(ls_pool_retire(e.pool, slot, flag_done, &done));
  OK(ls_pool_in_flight_slots(e.pool, &count));
  CHECK(count == 1);
  done = 1;
  OK(ls_pool_free_slots(e.pool, &count));
  CHECK(count == kSlots);
  end_engine(&e);
}

static void test_adopted_pool_and_pack(void) {
  static float recurrent[2 * kHV * kD * kD], window[2 * kChannels * (kW - 1)], kv[2 * kH * kD * kD];
  engine e = make_engine(NULL);
  ls_pool* pool = NULL;
  ls_pool_spec spec;
  ls_adopted_layer layers[2];
  int64_t shape[] = {2, kHV, kD, kD};
  int64_t bytes = 0, written = 0, position = 0, slots = 0;
  char* pack;
  FILL(recurrent, 20, 1.0f);
  FILL(window, 21, 1.0f);
  FILL(kv, 22, 1.0f);
  LS_INIT(&spec);
  spec.model = e.model;
  LS_INIT(&layers[0]);
  LS_INIT(&layers[1]);
  layers[0].recurrent = ls_dense(recurrent, LS_F32, 4, shape);
  layers[0].conv_window = dense(window, LS_F32, 3, 2, kChannels, kW - 1);
  shape[1] = kH;
  layers[1].recurrent = ls_dense(kv, LS_F32, 4, shape);
  OK(ls_pool_adopt(&spec, layers, 2, &pool));
  OK(ls_bytes_per_slot(&spec, &bytes));
  CHECK(bytes == (int64_t)(sizeof recurrent + sizeof window + sizeof kv) / 2);
  OK(ls_max_slots(&spec, 10 * bytes, &slots));
  CHECK(slots == 10);
  OK(ls_slot_pack_bytes(&spec, LS_PACK_EXACT, &bytes));
  pack = malloc((size_t)bytes);
  FAILS(LS_INVALID_ARGUMENT, "out", ls_pack_slot(pool, 1, 7, LS_PACK_EXACT, pack, 10, &written));
  OK(ls_pack_slot(pool, 1, 7, LS_PACK_EXACT, pack, (size_t)bytes, &written));
  CHECK(written == bytes);
  OK(ls_unpack_slot(pack, (size_t)written, pool, 0, NULL, &position));
  CHECK(position == 7);
  CHECK(memcmp(kv, kv + kH * kD * kD, sizeof kv / 2) == 0);
  pack[written / 2] ^= 1;
  FAILS(LS_DATA_LOSS, "", ls_unpack_slot(pack, (size_t)written, pool, 0, NULL, &position));
  FAILS(LS_INVALID_ARGUMENT, "scheme", ls_slot_pack_bytes(&spec, 9, &bytes));
  FAILS(LS_FAILED_PRECONDITION, "", ls_pool_release_memory(pool));
  layers[1].recurrent.shape[3] = kD - 1;
  ls_pool_destroy(pool);
  FAILS(LS_INVALID_ARGUMENT, "recurrent", ls_pool_adopt(&spec, layers, 2, &pool));
  CHECK(pool == NULL);
  free(pack);
  end_engine(&e);
}

static void test_batches(void) {
  static outputs out;
  engine e = make_engine(NULL);
  ls_row rows[2];
  ls_forward_batch batch;
  ls_snapshot_request request;
  ls_segment segment;
  int32_t taken = -1;
  const int32_t clear[] = {3}, src[] = {3}, dst[] = {2};
  rows[0] = row_of(0, LS_ROW_EXTEND, 0, 4);
  rows[1] = row_of(0, LS_ROW_EXTEND, 0, 4);
  LS_INIT(&batch);
  batch.rows = rows;
  batch.num_rows = 2;
  FAILS(LS_INVALID_ARGUMENT, "slot", ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  rows[1].kind = 9;
  FAILS(LS_INVALID_ARGUMENT, "rows.kind",
        ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  batch.num_rows = 1;
  batch.clear = clear;
  batch.num_clears = 1;
  batch.copy_src = src;
  batch.num_copies = 1;
  FAILS(LS_INVALID_ARGUMENT, "batch.copy_dst",
        ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  batch.copy_dst = dst;
  OK(ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  CHECK(same_state(&e, 2, 3));
  LS_INIT(&request);
  request.position = 3;
  request.slot = 1;
  batch.snapshots = &request;
  batch.num_snapshots = 1;
  OK(ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  OK(ls_metadata_snapshot_taken(e.metadata, 0, &taken));
  FAILS(LS_INVALID_ARGUMENT, "request", ls_metadata_snapshot_taken(e.metadata, 1, &taken));
  LS_INIT(&segment);
  OK(ls_metadata_segment(e.metadata, LS_ROW_EXTEND, &segment));
  CHECK(segment.row_end == 1 && segment.token_end == 4 && segment.slot.shape[0] == 1);
  FAILS(LS_NOT_FOUND, "kind", ls_metadata_segment(e.metadata, LS_ROW_DECODE, &segment));
  FAILS(LS_INVALID_ARGUMENT, "kind", ls_metadata_segment(e.metadata, -1, &segment));
  run(&e, row_of(0, LS_ROW_EXTEND, 0, kTokens), &out);
  end_engine(&e);
}

/* Older and newer callers. */
static void test_struct_sizes(void) {
  static outputs out;
  struct {
    ls_kda_io io;
    char more[8];
  } newer;
  engine e = make_engine(NULL);
  const ls_kda_weights weights = kda_weights();
  ls_row row = row_of(0, LS_ROW_EXTEND, 0, 2);
  memset(&row.force_flush, 0xff, sizeof row.force_flush); /* beyond what the caller knows */
  row.struct_size = offsetof(ls_row, force_flush);
  prepare(&e, &row);
  row.struct_size = 4;
  {
    ls_forward_batch batch;
    LS_INIT(&batch);
    batch.rows = &row;
    batch.num_rows = 1;
    FAILS(LS_INVALID_ARGUMENT, "ls_row.struct_size",
          ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
    batch.struct_size = 0;
    FAILS(LS_INVALID_ARGUMENT, "ls_forward_batch.struct_size",
          ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  }
  newer.io = kda_io(0, 2, &out);
  newer.io.struct_size = sizeof newer;
  FAILS(
      LS_INVALID_ARGUMENT, "ls_kda_io.struct_size",
      ls_kda_backend_forward(e.kda, 0, &weights, e.metadata, e.pool, &newer.io, &e.context, NULL));
  newer.io.struct_size = offsetof(ls_kda_io, out); /* `out` is not given */
  FAILS(
      LS_INVALID_ARGUMENT, "out",
      ls_kda_backend_forward(e.kda, 0, &weights, e.metadata, e.pool, &newer.io, &e.context, NULL));
  {
    ls_batch_counts counts;
    memset(&counts, 0x55, sizeof counts);
    counts.struct_size = offsetof(ls_batch_counts, num_tokens);
    OK(ls_metadata_counts(e.metadata, &counts));
    CHECK(counts.num_rows == 1 && counts.num_tokens == 0x5555555555555555);
    CHECK(counts.struct_size == offsetof(ls_batch_counts, num_tokens));
  }
  end_engine(&e);
}

/* Every way to get one tensor wrong. */
static void test_tensors(void) {
  static float data[2 * kH * kD];
  float sums[2] = {0, 0};
  ls_context context;
  ls_rms_sum_sq_params params;
  ls_tensor good = dense(data, LS_F32, 2, 2, kH * kD, 0);
  LS_INIT(&context);
  LS_INIT(&params);
  for (int i = 0; i < 2 * kH * kD; ++i) data[i] = 1.0f;
  params.sum_sq = dense(sums, LS_F32, 2, 2, 1, 0);
  params.x = good;
  OK(ls_rms_sum_sq(&params, &context, NULL));
  CHECK(sums[0] == kH * kD && sums[1] == kH * kD);
#define BAD(part, change)                                                   \
  params.x = good;                                                          \
  change;                                                                   \
  FAILS(LS_INVALID_ARGUMENT, part, ls_rms_sum_sq(&params, &context, NULL)); \
  CHECK(strncmp(ls_last_error(), "x: expected", 11) == 0 || strncmp(ls_last_error(), "x:", 2) == 0)
  BAD("rank", params.x.rank = 6);
  BAD("rank", params.x.rank = -1);
  BAD("dtype", params.x.dtype = 8);
  BAD("dtype", params.x.dtype = LS_I32);
  BAD("device", params.x.device_type = 3);
  BAD("device", params.x.device_index = -1);
  BAD("device", params.x.device_type = LS_CUDA);
  BAD("null", params.x.data = NULL);
  BAD("aligned", params.x.data = (char*)data + 1);
  BAD("shape[0]", params.x.shape[0] = -1);
  BAD("stride[1]", params.x.stride[1] = INT64_MIN);
  BAD("2^48", params.x.shape[0] = INT64_C(1) << 40; params.x.shape[1] = INT64_C(1) << 40);
  BAD("", params.x.rank = 0);
#undef BAD
  params.x = ls_dense(data, LS_F32, 2, NULL);
  FAILS(LS_INVALID_ARGUMENT, "x: expected rank", ls_rms_sum_sq(&params, &context, NULL));
  params.x = good;
  FAILS(LS_NOT_FOUND, "no_such_kernel", ls_rms_sum_sq(&params, &context, "no_such_kernel"));
  FAILS(LS_INVALID_ARGUMENT, "params", ls_rms_sum_sq(NULL, &context, NULL));
  FAILS(LS_INVALID_ARGUMENT, "context", ls_rms_sum_sq(&params, NULL, NULL));
  context.num_threads = -1;
  FAILS(LS_INVALID_ARGUMENT, "context.num_threads", ls_rms_sum_sq(&params, &context, NULL));
  context.num_threads = 0;
  context.workspace_bytes = -1;
  FAILS(LS_INVALID_ARGUMENT, "context.workspace_bytes", ls_rms_sum_sq(&params, &context, NULL));
  context.workspace_bytes = 0;
  context.status = (ls_device_status*)((char*)data + 4);
  FAILS(LS_INVALID_ARGUMENT, "context.status", ls_rms_sum_sq(&params, &context, NULL));
}

static void test_slices(void) {
  float data[24];
  ls_tensor tensor = dense(data, LS_F32, 3, 2, 3, 4), part;
  OK(ls_slice(&tensor, 1, 1, 3, &part));
  CHECK(part.data == data + 4 && part.shape[1] == 2 && part.stride[0] == 12);
  FAILS(LS_INVALID_ARGUMENT, "dim", ls_slice(&tensor, 3, 0, 0, &part));
  FAILS(LS_INVALID_ARGUMENT, "begin", ls_slice(&tensor, 1, 2, 4, &part));
  FAILS(LS_INVALID_ARGUMENT, "out", ls_slice(&tensor, 1, 0, 1, NULL));
}

/* Operators without a backend around them. */
static void test_operators(void) {
  float planes[3 * kD];
  const float want[] = {0.0f, 2.0f, 2.0f};
  int32_t one[] = {0}, from[] = {1}, to[] = {2}, parent[4];
  int32_t child[] = {1, 3, -1, -1}, sibling[] = {-1, 2, -1, -1};
  ls_tensor plane = dense(planes, LS_F32, 2, 3, kD, 0);
  ls_context context;
  ls_state_clear_params clear;
  ls_state_copy_params copy;
  ls_tree_from_links_params tree;
  int64_t bytes = -1;
  for (int i = 0; i < 3 * kD; ++i) planes[i] = (float)(i / kD + 1);
  LS_INIT(&context);
  LS_INIT(&clear);
  clear.planes = &plane;
  clear.num_planes = 1;
  clear.slots = dense(one, LS_I32, 1, 1, 0, 0);
  OK(ls_state_clear_workspace_bytes(&clear, &context, NULL, &bytes));
  CHECK(bytes == 0);
  FAILS(LS_INVALID_ARGUMENT, "bytes", ls_state_clear_workspace_bytes(&clear, &context, NULL, NULL));
  OK(ls_state_clear(&clear, &context, NULL));
  LS_INIT(&copy);
  copy.src = copy.dst = &plane;
  copy.num_src = copy.num_dst = 1;
  copy.src_slots = dense(from, LS_I32, 1, 1, 0, 0);
  copy.dst_slots = dense(to, LS_I32, 1, 1, 0, 0);
  OK(ls_state_copy(&copy, &context, NULL));
  for (int i = 0; i < 3 * kD; ++i) CHECK(planes[i] == want[i / kD]);
  clear.planes = NULL;
  FAILS(LS_INVALID_ARGUMENT, "planes", ls_state_clear(&clear, &context, NULL));
  LS_INIT(&tree);
  tree.first_child = dense(child, LS_I32, 2, 1, 4, 0);
  tree.next_sibling = dense(sibling, LS_I32, 2, 1, 4, 0);
  tree.parent = dense(parent, LS_I32, 2, 1, 4, 0);
  OK(ls_tree_from_links(&tree, &context, NULL));
  CHECK(parent[0] == -1 && parent[1] == 0 && parent[2] == 0 && parent[3] == 1);
  {
    ls_kda_params kda;
    ls_kda_verify_params verify;
    LS_INIT(&kda);
    LS_INIT(&verify);
    FAILS(LS_INVALID_ARGUMENT, "rows", ls_kda_decode(&kda, &context, NULL));
    FAILS(LS_INVALID_ARGUMENT, "params", ls_kda_verify(&verify, &context, NULL));
    kda.gate_form = 3;
    kda.rows = &(ls_rows){.struct_size = sizeof(ls_rows)};
    FAILS(LS_INVALID_ARGUMENT, "gate_form", ls_kda_prefill(&kda, &context, NULL));
  }
  FAILS(LS_INVALID_ARGUMENT, "capacity", ls_lightning_slopes(4, 0, 2, 0, 1, 0, slopes, 3));
  FAILS(LS_INVALID_ARGUMENT, "slope_rule", ls_lightning_slopes(2, 0, 2, 0, 1, 7, slopes, 3));
}

static void test_text(void) {
  char whole[4096], cut[8];
  size_t needed = 0, again = 0;
  OK(ls_list_presets(NULL, 0, &needed));
  CHECK(needed > 8 && needed < sizeof whole);
  OK(ls_list_presets(whole, sizeof whole, &again));
  CHECK(again == needed && strlen(whole) == needed && strstr(whole, "kimi-linear\n") != NULL);
  memset(cut, 'x', sizeof cut);
  OK(ls_list_presets(cut, sizeof cut, NULL));
  CHECK(strlen(cut) == sizeof cut - 1 && strncmp(cut, whole, sizeof cut - 1) == 0);
  OK(ls_list_presets(cut, 1, NULL));
  CHECK(cut[0] == '\0');
  FAILS(LS_INVALID_ARGUMENT, "buffer", ls_list_presets(NULL, 4, &needed));
  OK(ls_list_devices(whole, sizeof whole, &needed));
  CHECK(strncmp(whole, "cpu\t", 4) == 0);
  OK(ls_list_kernels(NULL, 0, &needed));
  {
    char* text = malloc(needed + 1);
    OK(ls_list_kernels(text, needed + 1, NULL));
    CHECK(strstr(text, "kda_decode\tcpu\tcpu\t") != NULL);
    free(text);
  }
  {
    engine e = make_engine(NULL);
    static outputs out;
    const ls_row row = row_of(0, LS_ROW_EXTEND, 0, kTokens);
    const ls_kda_weights weights = kda_weights();
    const ls_kda_io io = kda_io(0, kTokens, &out);
    ls_reset_kernel_uses();
    run(&e, row, &out);
    OK(ls_kda_backend_explain(e.kda, 0, &weights, e.metadata, e.pool, &io, &e.context, NULL, whole,
                              sizeof whole, NULL));
    CHECK(strstr(whole, "kda_prefill: cpu") != NULL);
    OK(ls_kernel_uses(whole, sizeof whole, NULL));
    CHECK(strstr(whole, "kda_prefill\tcpu\t1\t0\t") != NULL);
    end_engine(&e);
  }
  CHECK(ls_abi_version() == LS_ABI_VERSION);
  CHECK(strlen(ls_version()) > 0 && strlen(ls_build_description()) > 0);
  CHECK(strcmp(ls_status_name(LS_NOT_FOUND), "not_found") == 0);
  CHECK(strcmp(ls_status_name(77), "unknown") == 0);
}

static void test_models(void) {
  ls_model* model = NULL;
  ls_layer_spec layers[2], got;
  int64_t count = 0;
  FAILS(LS_NOT_FOUND, "tiny", ls_model_from_preset("no-such-model", 0, 1, &model));
  CHECK(model == NULL);
  FAILS(LS_INVALID_ARGUMENT, "name", ls_model_from_preset(NULL, 0, 1, &model));
  FAILS(LS_INVALID_ARGUMENT, "out", ls_model_from_preset("tiny", 0, 1, NULL));
  FAILS(LS_INVALID_ARGUMENT, "", ls_model_from_preset("tiny", 2, 2, &model));
  OK(ls_model_from_preset("kimi-linear", 1, 4, &model));
  OK(ls_model_num_linear_layers(model, &count));
  LS_INIT(&got);
  OK(ls_model_layer(model, 0, &got));
  CHECK(count > 0 && got.kind == LS_LAYER_KDA && got.num_heads == 8 && got.k_dim == 128);
  FAILS(LS_INVALID_ARGUMENT, "index", ls_model_layer(model, count, &got));
  FAILS(LS_INVALID_ARGUMENT, "model", ls_model_layer(NULL, 0, &got));
  ls_model_destroy(model);
  describe_layers(layers);
  layers[1].variant = 5;
  FAILS(LS_INVALID_ARGUMENT, "layers.variant", ls_model_from_layers(layers, 2, 2, 0, 1, &model));
  describe_layers(layers);
  layers[0].k_dim = 17;
  FAILS(LS_INVALID_ARGUMENT, "k_dim", ls_model_from_layers(layers, 2, 2, 0, 1, &model));
  FAILS(LS_INVALID_ARGUMENT, "layers", ls_model_from_layers(NULL, 2, 2, 0, 1, &model));
}

static void test_prefix_cache(void) {
  int64_t tokens[200], position = -1;
  int32_t slot = -9, outcome = -9, freed[2], contains = 0;
  size_t count = 9;
  ls_prefix_cache* cache = NULL;
  ls_prefix_lease* lease = NULL;
  ls_prefix_cache_options options;
  ls_prefix_cache_stats stats;
  for (int i = 0; i < 200; ++i) tokens[i] = i;
  LS_INIT(&options);
  options.byte_budget = 10;
  FAILS(LS_INVALID_ARGUMENT, "bytes_per_snapshot", ls_prefix_cache_create(&options, &cache));
  options.bytes_per_snapshot = 10;
  OK(ls_prefix_cache_create(&options, &cache));
  OK(ls_prefix_cache_match(cache, tokens, 200, &lease, &slot, &position));
  CHECK(lease == NULL && slot == LS_PAD_SLOT && position == 0);
  OK(ls_prefix_cache_insert(cache, tokens, 200, 64, 5, &outcome));
  CHECK(outcome == LS_INSERTED);
  OK(ls_prefix_cache_insert(cache, tokens, 200, 128, 6, &outcome)); /* evicts the first */
  OK(ls_prefix_cache_take_freed(cache, freed, 2, &count));
  CHECK(count == 1 && freed[0] == 5);
  OK(ls_prefix_cache_contains(cache, tokens, 200, 128, &contains));
  CHECK(contains == 1);
  FAILS(LS_INVALID_ARGUMENT, "position",
        ls_prefix_cache_insert(cache, tokens, 200, 65, 7, &outcome));
  FAILS(LS_INVALID_ARGUMENT, "tokens",
        ls_prefix_cache_match(cache, NULL, 200, &lease, &slot, &position));
  OK(ls_prefix_cache_match(cache, tokens, 200, &lease, &slot, &position));
  CHECK(lease != NULL && slot == 6 && position == 128);
  FAILS(LS_FAILED_PRECONDITION, "", ls_prefix_cache_clear(cache));
  OK(ls_prefix_cache_take(cache, lease, &slot));
  CHECK(slot == 6);
  ls_prefix_lease_destroy(lease);
  FAILS(LS_NOT_FOUND, "", ls_prefix_cache_erase(cache, tokens, 200, 128, &slot));
  LS_INIT(&stats);
  OK(ls_prefix_cache_get_stats(cache, &stats));
  CHECK(stats.lookups == 2 && stats.hits == 1 && stats.entries == 0);
  OK(ls_prefix_cache_evict(cache, 3));
  OK(ls_prefix_cache_clear(cache));
  ls_prefix_cache_destroy(cache);
}

static void test_device_status(void) {
  char memory[128], text[256];
  float planes[2 * kD] = {0};
  ls_device_status* block = (ls_device_status*)(memory + (64 - (uintptr_t)memory % 64) % 64);
  uint32_t flags = 9;
  int32_t row = 0;
  size_t needed = 0;
  OK(ls_device_status_reset(block));
  OK(ls_device_status_flags(block, &flags));
  CHECK(flags == 0);
  OK(ls_device_status_row(block, LS_FLAG_STATE_OVERFLOW, &row));
  CHECK(row == -1);
  OK(ls_device_status_describe(block, text, sizeof text, &needed));
  CHECK(needed == 0 && text[0] == '\0');
  {
    float in[kD];
    ls_context context;
    ls_rms_sum_sq_params params;
    LS_INIT(&context);
    LS_INIT(&params);
    for (int i = 0; i < kD; ++i) in[i] = NAN;
    context.status = block;
    context.check_finite = 1;
    params.x = dense(in, LS_F32, 2, 1, kD, 0);
    params.sum_sq = dense(planes, LS_F32, 2, 1, 1, 0);
    OK(ls_rms_sum_sq(&params, &context, NULL));
  }
  OK(ls_device_status_flags(block, &flags));
  CHECK(flags == LS_FLAG_NON_FINITE);
  OK(ls_device_status_describe(block, text, sizeof text, &needed));
  CHECK(needed > 0);
  FAILS(LS_INVALID_ARGUMENT, "flag", ls_device_status_row(block, 3, &row));
  FAILS(LS_INVALID_ARGUMENT, "block", ls_device_status_reset(NULL));
  FAILS(LS_INVALID_ARGUMENT, "aligned",
        ls_device_status_reset((ls_device_status*)((char*)block + 4)));
}

/* Null where a handle belongs, in every function that takes one. */
static void test_null_handles(void) {
  engine e = make_engine(NULL);
  int64_t wide;
  int32_t narrow;
  const char* pool = "pool: expected a pointer";
  ls_kda_backend_destroy(NULL);
  ls_lightning_backend_destroy(NULL);
  ls_metadata_destroy(NULL);
  ls_records_destroy(NULL);
  ls_pool_destroy(NULL);
  ls_model_destroy(NULL);
  ls_prefix_cache_destroy(NULL);
  ls_prefix_lease_destroy(NULL);
  FAILS(LS_INVALID_ARGUMENT, pool, ls_pool_num_slots(NULL, &wide));
  FAILS(LS_INVALID_ARGUMENT, pool, ls_pool_allocate(NULL, &narrow));
  FAILS(LS_INVALID_ARGUMENT, "slot: expected a pointer", ls_pool_allocate(e.pool, NULL));
  FAILS(LS_INVALID_ARGUMENT, pool, ls_pool_free(NULL, 0));
  FAILS(LS_INVALID_ARGUMENT, pool, ls_pool_fold(NULL, NULL, &e.context));
  FAILS(LS_INVALID_ARGUMENT, "slots", ls_pool_fold(e.pool, NULL, &e.context));
  FAILS(LS_INVALID_ARGUMENT, "spec", ls_bytes_per_slot(NULL, &wide));
  FAILS(LS_INVALID_ARGUMENT, "metadata", ls_metadata_prepare(NULL, NULL, e.pool, &e.context));
  FAILS(LS_INVALID_ARGUMENT, "batch", ls_metadata_prepare(e.metadata, NULL, e.pool, &e.context));
  FAILS(LS_INVALID_ARGUMENT, "records", ls_records_lightning(NULL, 0, NULL));
  FAILS(LS_INVALID_ARGUMENT, "index: expected a lightning layer",
        ls_records_lightning(e.records, 0, NULL));
  FAILS(LS_INVALID_ARGUMENT, "record: expected a pointer",
        ls_records_lightning(e.records, 1, NULL));
  FAILS(LS_INVALID_ARGUMENT, "model", ls_kda_backend_create(NULL, NULL, &e.kda));
  CHECK(e.kda == NULL);
  FAILS(LS_INVALID_ARGUMENT, "backend",
        ls_kda_backend_forward(e.kda, 0, NULL, e.metadata, e.pool, NULL, &e.context, NULL));
  FAILS(LS_INVALID_ARGUMENT, "weights",
        ls_lightning_backend_forward(e.lightning, 1, NULL, e.metadata, e.pool, NULL, &e.context,
                                     NULL));
  FAILS(LS_INVALID_ARGUMENT, "cache", ls_prefix_cache_evict(NULL, 1));
  FAILS(LS_INVALID_ARGUMENT, pool, ls_pack_slot(NULL, 0, 0, 0, &wide, 8, &wide));
  end_engine(&e);
}

int main(void) {
  fill_all();
  test_phases_agree();
  test_pool();
  test_retire();
  test_adopted_pool_and_pack();
  test_batches();
  test_struct_sizes();
  test_tensors();
  test_slices();
  test_operators();
  test_text();
  test_models();
  test_prefix_cache();
  test_device_status();
  test_null_handles();
  printf("%d checks, %d failures\n", g_checks, g_failures);
  return g_failures == 0 ? 0 : 1;
}
