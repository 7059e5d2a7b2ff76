/* The C interface: what a pool is made of, slot packs that say what they are, restores in a batch,
 * and the smaller doors. */
#include "tests/c_engine.h"

enum { kMostDescriptors = 8 };

/* Copies slot `from` of a pool to slot `to` of another one by descriptors alone. */
static void move_slot(const ls_transfer_descriptor* a, const ls_transfer_descriptor* b,
                      size_t count, int32_t from, int32_t to) {
  for (size_t i = 0; i < count; ++i) {
    OK(ls_check_transferable(&a[i], &b[i]));
    for (int64_t head = 0; head < a[i].heads; ++head) {
      for (int64_t r = 0; r < a[i].runs_per_head; ++r) {
        const char* source = (char*)a[i].base + from * a[i].slot_stride_bytes +
                             head * a[i].head_stride_bytes + r * a[i].run_stride_bytes;
        char* target = (char*)b[i].base + to * b[i].slot_stride_bytes +
                       head * b[i].head_stride_bytes + r * b[i].run_stride_bytes;
        memcpy(target, source, (size_t)a[i].run_bytes);
      }
    }
  }
}

static void test_transfer(void) {
  static outputs out;
  engine e = make_engine(NULL);
  ls_transfer_descriptor all[kMostDescriptors], other;
  size_t count = 0;
  int64_t bytes = 0, part = 0;
  ls_pool_spec spec;
  run(&e, row_of(0, LS_ROW_EXTEND, 0, kTokens), &out);
  OK(ls_transfer_descriptors(e.pool, NULL, 0, &count));
  CHECK(count == 5); /* recurrent, q, k, v; recurrent */
  LS_INIT(&all[0]);
  OK(ls_transfer_descriptors(e.pool, all, kMostDescriptors, &count));
  CHECK(count == 5 && all[4].struct_size == sizeof all[0]);
  CHECK(all[0].part == LS_PART_RECURRENT && all[1].part == LS_PART_CONV_Q);
  CHECK(all[2].part == LS_PART_CONV_K && all[3].part == LS_PART_CONV_V);
  CHECK(all[1].heads == kH && all[3].heads == kHV && all[4].layer_id == 1);
  CHECK(all[0].layout == LS_LAYOUT_VK && all[4].layout == LS_LAYOUT_KV);
  CHECK(all[0].num_slots == kSlots && all[0].order == LS_LAST_FASTEST);
  CHECK(all[1].order == LS_FIRST_FASTEST && all[1].runs_per_head == kW - 1);
  for (size_t i = 0; i < count; ++i) part += all[i].bytes_per_slot;
  LS_INIT(&spec);
  spec.model = e.model;
  OK(ls_bytes_per_slot(&spec, &bytes));
  CHECK(part == bytes);
  CHECK(!same_state(&e, 0, 2));
  move_slot(all, all, count, 0, 2);
  CHECK(same_state(&e, 0, 2));
  FAILS(LS_INVALID_ARGUMENT, "b.part", ls_check_transferable(&all[1], &all[2]));
  other = all[0];
  other.dtype = 77;
  FAILS(LS_INVALID_ARGUMENT, "dtype", ls_check_transferable(&all[0], &other));
  all[0].struct_size = 8; /* a caller that knows no more than the size */
  OK(ls_transfer_descriptors(e.pool, all, 1, &count));
  CHECK(count == 5 && all[0].struct_size == 8);
  OK(ls_pool_release_memory(e.pool));
  FAILS(LS_FAILED_PRECONDITION, "", ls_transfer_descriptors(e.pool, NULL, 0, &count));
  end_engine(&e);
}

static void test_packs_and_restores(void) {
  static outputs out;
  engine e = make_engine("ref");
  ls_pool_spec spec;
  ls_slot_pack_info info;
  ls_layer_state layers[3];
  ls_forward_batch batch;
  ls_slot_restore restore;
  ls_row row = row_of(1, LS_ROW_EXTEND, 4, 4);
  size_t count = 0;
  int64_t bytes = 0, written = 0;
  char* pack;
  LS_INIT(&spec);
  spec.model = e.model;
  OK(ls_slot_pack_bytes(&spec, LS_PACK_EXACT, &bytes));
  pack = malloc((size_t)bytes);
  run(&e, row_of(0, LS_ROW_EXTEND, 0, 4), &out);
  OK(ls_pack_slot(e.pool, 0, 4, LS_PACK_EXACT, pack, (size_t)bytes, &written));
  LS_INIT(&info);
  LS_INIT(&layers[0]);
  OK(ls_read_slot_pack(pack, (size_t)written, &info, layers, 3, &count));
  CHECK(count == 2 && info.position == 4 && info.total_bytes == written);
  CHECK(info.scheme == LS_PACK_EXACT && info.state_dtype == LS_F32 && info.window_dtype == LS_F32);
  CHECK(info.numerics_version == ls_numerics_version());
  CHECK(layers[0].heads == kHV && layers[0].conv_channels == kChannels);
  CHECK(layers[0].conv_tail == kW - 1 && layers[1].layout == LS_LAYOUT_KV);
  CHECK(layers[1].struct_size == sizeof layers[0] && layers[1].layer_id == 1);
  OK(ls_read_slot_pack(pack, (size_t)written, &info, NULL, 0, NULL));
  FAILS(LS_DATA_LOSS, "header", ls_read_slot_pack(pack, 10, &info, NULL, 0, NULL));

  LS_INIT(&restore);
  restore.pack = pack;
  restore.pack_size = (size_t)written;
  restore.slot = 1;
  LS_INIT(&batch);
  batch.rows = &row;
  batch.num_rows = 1;
  batch.restores = &restore;
  batch.num_restores = 1;
  row.start = 3;
  FAILS(LS_INVALID_ARGUMENT, "pre.restore[0]: pack.position: expected 3",
        ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  row.start = 4;
  restore.pack_size = 0;
  FAILS(LS_DATA_LOSS, "pre.restore[0]",
        ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  restore.pack_size = (size_t)written;
  CHECK(!same_state(&e, 0, 1));
  OK(ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  CHECK(same_state(&e, 0, 1));
  row.kind = LS_ROW_DECODE;
  row.tokens = 1;
  FAILS(LS_INVALID_ARGUMENT, "without extend rows",
        ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  /* The restored row goes on as the one that never left. */
  run(&e, row_of(1, LS_ROW_EXTEND, 4, 4), &out);
  run(&e, row_of(0, LS_ROW_EXTEND, 4, 4), &out);
  CHECK(same_state(&e, 0, 1));
  free(pack);
  end_engine(&e);
}

static void test_rings_rows_and_segments(void) {
  engine e = make_engine(NULL);
  const float* slopes_of[2] = {NULL, slopes};
  ls_pool_spec spec;
  ls_replay_ring ring;
  ls_tensor cursor;
  ls_forward_batch batch;
  ls_snapshot_request request;
  ls_rows rows;
  ls_segment segment;
  const ls_row row = row_of(2, LS_ROW_DECODE, 5, 1);
  LS_INIT(&ring);
  FAILS(LS_FAILED_PRECONDITION, "rings", ls_pool_replay_ring(e.pool, 0, &ring));
  FAILS(LS_FAILED_PRECONDITION, "rings", ls_pool_replay_cursor(e.pool, &cursor));
  ls_pool_destroy(e.pool);
  LS_INIT(&spec);
  spec.model = e.model;
  spec.replay_length = 4;
  spec.replay_slopes = slopes_of;
  OK(ls_pool_create(&spec, kSlots, LS_CPU, 0, &e.pool));
  OK(ls_pool_replay_ring(e.pool, 0, &ring));
  CHECK(ring.keys.rank == 4 && ring.keys.shape[1] == kHV && ring.keys.shape[2] == 3);
  CHECK(ring.gamma.rank == 3);
  OK(ls_pool_replay_ring(e.pool, 1, &ring));
  CHECK(ring.keys.shape[1] == kH && ring.gamma.rank == 0);
  FAILS(LS_INVALID_ARGUMENT, "index", ls_pool_replay_ring(e.pool, 2, &ring));
  OK(ls_pool_replay_cursor(e.pool, &cursor));
  CHECK(cursor.shape[0] == kSlots && ((int32_t*)cursor.data)[2] == 0);
  LS_INIT(&request);
  request.position = 6;
  request.slot = 3;
  LS_INIT(&batch);
  batch.rows = &row;
  batch.num_rows = 1;
  OK(ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  CHECK(((int32_t*)cursor.data)[2] == 1);
  batch.snapshots = &request;
  batch.num_snapshots = 1;
  OK(ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  LS_INIT(&rows);
  OK(ls_metadata_rows(e.metadata, &rows));
  CHECK(((int32_t*)rows.slot.data)[0] == 2 && ((int64_t*)rows.start.data)[0] == 5);
  CHECK(((int64_t*)rows.query_start_loc.data)[1] == 1 && ((int32_t*)rows.num_valid.data)[0] == 1);
  LS_INIT(&segment);
  OK(ls_metadata_segment(e.metadata, LS_ROW_DECODE, &segment));
  CHECK(((int32_t*)segment.replay_pending.data)[0] == 1); /* of the first step */
  CHECK(((uint8_t*)segment.replay_flush.data)[0] == 1);   /* for the snapshot */
  CHECK(((int32_t*)segment.snapshot_row.data)[0] == 0);
  CHECK(((int64_t*)segment.snapshot_position.data)[0] == 6);
  CHECK(((int32_t*)segment.snapshot_slot.data)[0] == 3);
  CHECK(((int32_t*)segment.snapshot_source.data)[0] == 2);
  end_engine(&e);
}

static void test_models_and_status(void) {
  /* Aligned to 64 bytes by hand: C99 has no alignas. */
  static char memory[sizeof(ls_device_status) + 64];
  ls_device_status* block = (void*)(memory + (64 - (uintptr_t)memory % 64) % 64);
  ls_model *model = NULL, *part = NULL;
  int64_t count = 0;
  int32_t slot = 0, layer = 0;
  size_t needed = 0;
  float big[4] = {1e30f, 1.0f, 2.0f, 3.0f};
  uint16_t half[4];
  const int32_t one[] = {0};
  ls_state_copy_params copy;
  ls_context context;
  ls_tensor src = dense(big, LS_F32, 2, 1, 4, 0), dst = dense(half, LS_F16, 2, 1, 4, 0);
  OK(ls_model_from_preset("tiny", 0, 1, &model));
  OK(ls_model_num_linear_layers(model, &count));
  OK(ls_model_limit_layers(model, 2, &part));
  OK(ls_model_num_linear_layers(part, &count));
  CHECK(count == 2);
  OK(ls_model_num_layers(part, &count));
  CHECK(count > 2); /* all decoder layers, as before */
  ls_model_destroy(part);
  FAILS(LS_INVALID_ARGUMENT, "layers", ls_model_limit_layers(model, 99, &part));
  CHECK(part == NULL);
  ls_model_destroy(model);
  OK(ls_cuda_note(NULL, 0, &needed));

  OK(ls_device_status_reset(block));
  OK(ls_device_status_overflow(block, &slot, &layer));
  CHECK(slot == -1 && layer == -1);
  LS_INIT(&copy);
  copy.src = &src;
  copy.num_src = 1;
  copy.dst = &dst;
  copy.num_dst = 1;
  copy.src_slots = copy.dst_slots = dense((void*)one, LS_I32, 1, 1, 0, 0);
  LS_INIT(&context);
  context.status = block;
  OK(ls_state_copy(&copy, &context, NULL));
  OK(ls_device_status_overflow(block, &slot, &layer));
  CHECK(slot == 0 && layer == 0);
}

static void test_device_memory(void) {
  float host[6] = {1, 2, 3, 4, 5, 6}, back[6] = {0};
  const int64_t shape[2] = {2, 3}, other[2] = {3, 2};
  ls_memory* memory = NULL;
  ls_stream* stream = NULL;
  ls_tensor here = ls_dense(host, LS_F32, 2, shape), there, again, wrong;
  void *data = NULL, *handle = &here;
  OK(ls_memory_create(LS_CPU, 0, sizeof host, &memory));
  OK(ls_memory_data(memory, &data));
  CHECK(data != NULL && (uintptr_t)data % 256 == 0);
  there = ls_dense(data, LS_F32, 2, shape);
  again = ls_dense(back, LS_F32, 2, shape);
  OK(ls_stream_create(LS_CPU, 0, &stream));
  OK(ls_stream_handle(stream, &handle));
  CHECK(handle == NULL); /* the CPU has none */
  OK(ls_copy_tensor(&there, &here, handle));
  OK(ls_copy_tensor(&again, &there, handle));
  OK(ls_synchronize(LS_CPU, 0, handle));
  CHECK(memcmp(host, back, sizeof host) == 0);
  wrong = ls_dense(back, LS_F32, 2, other);
  FAILS(LS_INVALID_ARGUMENT, "src: expected size 2", ls_copy_tensor(&there, &wrong, NULL));
  wrong = ls_dense(back, LS_F32, 1, shape);
  FAILS(LS_INVALID_ARGUMENT, "src: expected rank 2", ls_copy_tensor(&there, &wrong, NULL));
  wrong = ls_dense(back, LS_I32, 2, shape);
  FAILS(LS_INVALID_ARGUMENT, "src: expected dtype f32", ls_copy_tensor(&there, &wrong, NULL));
  again.stride[1] = 2;
  FAILS(LS_INVALID_ARGUMENT, "dst: expected a dense", ls_copy_tensor(&again, &here, NULL));
  memset(&again, 0, sizeof again);
  FAILS(LS_INVALID_ARGUMENT, "dst: expected a tensor", ls_copy_tensor(&again, &here, NULL));
  ls_memory_destroy(memory);
  ls_stream_destroy(stream);
  ls_memory_destroy(NULL);
  ls_stream_destroy(NULL);
  FAILS(LS_INVALID_ARGUMENT, "bytes", ls_memory_create(LS_CPU, 0, -1, &memory));
  CHECK(memory == NULL);
  FAILS(LS_INVALID_ARGUMENT, "device_type", ls_memory_create(9, 0, 1, &memory));
  FAILS(LS_UNSUPPORTED, "", ls_memory_create(LS_EXTERNAL, 0, 1, &memory));
  FAILS(LS_UNSUPPORTED, "", ls_stream_create(LS_EXTERNAL, 0, &stream));
  FAILS(LS_UNSUPPORTED, "", ls_synchronize(LS_EXTERNAL, 0, NULL));
}

int main(void) {
  fill_all();
  test_device_memory();
  test_transfer();
  test_packs_and_restores();
  test_rings_rows_and_segments();
  test_models_and_status();
  return report();
}
