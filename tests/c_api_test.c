/* The C interface from C: a request through every phase, pools, batches. */
#include "tests/c_engine.h"

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

int main(void) {
  fill_all();
  test_phases_agree();
  test_pool();
  test_retire();
  test_adopted_pool_and_pack();
  test_batches();
  return report();
}
