/* The C interface from C: sizes, tensors, text, and what misuse answers. */
#include "tests/c_engine.h"

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
  ls_kda_backend* none = e.kda; /* a failed create leaves null, not what was there */
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
  FAILS(LS_INVALID_ARGUMENT, "model", ls_kda_backend_create(NULL, NULL, &none));
  CHECK(none == NULL);
  FAILS(LS_INVALID_ARGUMENT, "backend",
        ls_kda_backend_forward(none, 0, NULL, e.metadata, e.pool, NULL, &e.context, NULL));
  FAILS(LS_INVALID_ARGUMENT, "weights",
        ls_lightning_backend_forward(e.lightning, 1, NULL, e.metadata, e.pool, NULL, &e.context,
                                     NULL));
  FAILS(LS_INVALID_ARGUMENT, "cache", ls_prefix_cache_evict(NULL, 1));
  FAILS(LS_INVALID_ARGUMENT, pool, ls_pack_slot(NULL, 0, 0, 0, &wide, 8, &wide));
  end_engine(&e);
}

int main(void) {
  fill_all();
  test_struct_sizes();
  test_tensors();
  test_slices();
  test_operators();
  test_text();
  test_models();
  test_prefix_cache();
  test_device_status();
  test_null_handles();
  return report();
}
