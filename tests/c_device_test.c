/* The C interface on a device: memory, streams, events, status, and a decode step that is captured
 * once and replayed with other rows, against the engine on the CPU. Runs on the first GPU where
 * there is one; elsewhere on the CPU, eagerly, through the same calls. */
#include "tests/c_engine.h"

enum { kPrompt = 4, kDecodeRows = 2, kPackBytes = 1 << 16 };

static int32_t g_type = LS_CPU;
static void* g_stream = NULL;

static ls_place on_device(const void* data) {
  ls_place place;
  place.data = (void*)data;
  place.device_type = g_type;
  place.device_index = 0;
  return place;
}

static ls_place on_host(const void* data) {
  ls_place place;
  place.data = (void*)data;
  place.device_type = LS_CPU;
  place.device_index = 0;
  return place;
}

/* Device memory with a tensor in it that has the host's contents. */
typedef struct placed {
  ls_memory* memory;
  ls_tensor view;
} placed;

static void upload(const placed* to, const void* host, size_t bytes) {
  const ls_place dst = on_device(to->view.data), src = on_host(host);
  OK(ls_copy_bytes(&dst, &src, (int64_t)bytes, g_stream));
}

static placed place(const float* host, size_t count, ls_tensor view) {
  placed made;
  made.view = view;
  OK(ls_memory_create(g_type, 0, (int64_t)(count * sizeof(float)), &made.memory));
  OK(ls_memory_data(made.memory, &made.view.data));
  made.view.device_type = g_type;
  upload(&made, host, count * sizeof(float));
  return made;
}
#define PLACE(array, view) place((array), sizeof(array) / sizeof *(array), (view))

typedef struct device_engine {
  ls_model* model;
  ls_pool* pool;
  ls_metadata* metadata;
  ls_kda_backend* kda;
  ls_lightning_backend* lightning;
  ls_status_block* status;
  ls_memory* workspace;
  ls_context context;
  placed w[7];  /* conv_weight, A_log, dt_bias, norm_weight, slopes */
  placed in[7]; /* qkv, gate, beta, z, q, k, v */
  placed out[2];
} device_engine;

static void make_layers(device_engine* d) {
  static outputs zero;
  d->w[0] = PLACE(conv_weight, dense(NULL, LS_F32, 2, kChannels, kW, 0));
  d->w[1] = PLACE(A_log, dense(NULL, LS_F32, 1, kHV, 0, 0));
  d->w[2] = PLACE(dt_bias, dense(NULL, LS_F32, 2, kHV, kD, 0));
  d->w[3] = PLACE(norm_weight, dense(NULL, LS_F32, 1, kD, 0, 0));
  d->w[4] = PLACE(slopes, dense(NULL, LS_F32, 1, kH, 0, 0));
  d->in[0] = PLACE(qkv, dense(NULL, LS_F32, 2, kTokens, kChannels, 0));
  d->in[1] = PLACE(gate, dense(NULL, LS_F32, 3, kTokens, kHV, kD));
  d->in[2] = PLACE(beta, dense(NULL, LS_F32, 2, kTokens, kHV, 0));
  d->in[3] = PLACE(z, dense(NULL, LS_F32, 3, kTokens, kHV, kD));
  d->in[4] = PLACE(q, dense(NULL, LS_F32, 3, kTokens, kH, kD));
  d->in[5] = PLACE(k, dense(NULL, LS_F32, 3, kTokens, kH, kD));
  d->in[6] = PLACE(v, dense(NULL, LS_F32, 3, kTokens, kH, kD));
  d->out[0] = PLACE(zero.kda, dense(NULL, LS_F32, 3, kTokens, kHV, kD));
  d->out[1] = PLACE(zero.lightning, dense(NULL, LS_F32, 3, kTokens, kH, kD));
}

static device_engine make_device_engine(void) {
  device_engine d;
  ls_layer_spec layers[2];
  ls_pool_spec spec;
  ls_forward_capacity capacity;
  int64_t bytes = 0, more = 0;
  memset(&d, 0, sizeof d);
  describe_layers(layers);
  OK(ls_model_from_layers(layers, 2, 2, 0, 1, &d.model));
  LS_INIT(&spec);
  spec.model = d.model;
  OK(ls_pool_create(&spec, kSlots, g_type, 0, &d.pool));
  LS_INIT(&capacity);
  capacity.rows = kDecodeRows;
  capacity.snapshots = 1;
  capacity.slot_work = 2;
  OK(ls_metadata_create(&capacity, g_type, 0, &d.metadata));
  OK(ls_kda_backend_create(d.model, NULL, &d.kda));
  OK(ls_lightning_backend_create(d.model, NULL, &d.lightning));
  OK(ls_status_block_create(g_type, 0, &d.status));
  LS_INIT(&d.context);
  d.context.device_type = g_type;
  d.context.stream = g_stream;
  OK(ls_status_block_address(d.status, &d.context.status));
  OK(ls_kda_backend_workspace_bytes(d.kda, kTokens, d.pool, &d.context, NULL, &bytes));
  OK(ls_lightning_backend_workspace_bytes(d.lightning, kTokens, d.pool, &d.context, NULL, &more));
  d.context.workspace_bytes = bytes > more ? bytes : more;
  OK(ls_memory_create(g_type, 0, d.context.workspace_bytes, &d.workspace));
  OK(ls_memory_data(d.workspace, &d.context.workspace));
  make_layers(&d);
  return d;
}

static void end_device_engine(device_engine* d) {
  OK(ls_synchronize(g_type, 0, g_stream));
  for (int i = 0; i < 7; ++i) ls_memory_destroy(d->w[i].memory);
  for (int i = 0; i < 7; ++i) ls_memory_destroy(d->in[i].memory);
  for (int i = 0; i < 2; ++i) ls_memory_destroy(d->out[i].memory);
  ls_memory_destroy(d->workspace);
  ls_status_block_destroy(d->status);
  ls_lightning_backend_destroy(d->lightning);
  ls_kda_backend_destroy(d->kda);
  ls_metadata_destroy(d->metadata);
  ls_pool_destroy(d->pool);
  ls_model_destroy(d->model);
}

/* The first n tokens of the fixed tensors. */
static ls_tensor first(ls_tensor view, int64_t n) {
  view.shape[0] = n;
  return view;
}

/* Tokens `at`, `at` + 1, ... of the stream to where the layers read the first n. */
static void bring_tokens(const device_engine* d, int64_t at, int64_t n) {
  const size_t bytes = (size_t)n * sizeof(float);
  upload(&d->in[0], qkv + at * kChannels, bytes * kChannels);
  upload(&d->in[1], gate + at * kKdaOut, bytes * kKdaOut);
  upload(&d->in[2], beta + at * kHV, bytes * kHV);
  upload(&d->in[3], z + at * kKdaOut, bytes * kKdaOut);
  upload(&d->in[4], q + at * kLightningOut, bytes * kLightningOut);
  upload(&d->in[5], k + at * kLightningOut, bytes * kLightningOut);
  upload(&d->in[6], v + at * kLightningOut, bytes * kLightningOut);
}

static void forward(const device_engine* d, int64_t n) {
  ls_kda_weights kda;
  ls_lightning_weights lightning;
  ls_kda_io a;
  ls_lightning_io b;
  LS_INIT(&kda);
  LS_INIT(&lightning);
  LS_INIT(&a);
  LS_INIT(&b);
  kda.conv_weight = d->w[0].view;
  kda.A_log = d->w[1].view;
  kda.dt_bias = d->w[2].view;
  kda.norm_weight = d->w[3].view;
  lightning.slopes = d->w[4].view;
  a.qkv = first(d->in[0].view, n);
  a.gate = first(d->in[1].view, n);
  a.beta = first(d->in[2].view, n);
  a.z = first(d->in[3].view, n);
  a.out = first(d->out[0].view, n);
  b.q = first(d->in[4].view, n);
  b.k = first(d->in[5].view, n);
  b.v = first(d->in[6].view, n);
  b.out = first(d->out[1].view, n);
  OK(ls_kda_backend_forward(d->kda, 0, &kda, d->metadata, d->pool, &a, &d->context, NULL));
  OK(ls_lightning_backend_forward(d->lightning, 1, &lightning, d->metadata, d->pool, &b,
                                  &d->context, NULL));
}

static void prepare_device(device_engine* d, const ls_row* row, const ls_batch_shape* shape,
                           const ls_slot_restore* restore) {
  ls_forward_batch batch;
  LS_INIT(&batch);
  batch.rows = row;
  batch.num_rows = 1;
  batch.shape = shape;
  batch.restores = restore;
  batch.num_restores = restore != NULL ? 1 : 0;
  OK(ls_metadata_prepare(d->metadata, &batch, d->pool, &d->context));
}

/* Outputs of the first n tokens against tokens `at`, ... of what the CPU gave. */
static void compare_outputs(const device_engine* d, const outputs* want, int64_t at, int64_t n) {
  static outputs got;
  const ls_place kda = on_device(d->out[0].view.data), lightning = on_device(d->out[1].view.data);
  const ls_place to_kda = on_host(got.kda), to_lightning = on_host(got.lightning);
  OK(ls_copy_bytes(&to_kda, &kda, n * kKdaOut * 4, g_stream));
  OK(ls_copy_bytes(&to_lightning, &lightning, n * kLightningOut * 4, g_stream));
  for (int64_t i = 0; i < n * kKdaOut; ++i) {
    CHECK(fabsf(got.kda[i] - want->kda[at * kKdaOut + i]) < 1e-4f);
  }
  for (int64_t i = 0; i < n * kLightningOut; ++i) {
    CHECK(fabsf(got.lightning[i] - want->lightning[at * kLightningOut + i]) < 1e-4f);
  }
}

static void expect_clean(const device_engine* d) {
  static char room[2 * sizeof(ls_device_status)]; /* a block wants to be aligned to 64 */
  ls_device_status* seen = (ls_device_status*)(room + (64 - (uintptr_t)room % 64) % 64);
  uint32_t flags = 1;
  OK(ls_status_block_read(d->status, g_stream, seen));
  OK(ls_device_status_flags(seen, &flags));
  CHECK(flags == 0);
}

/* One step of one row: captured the first time, replayed from then on. */
static void decode(device_engine* d, ls_row row, const ls_batch_shape* shape, ls_graph** graph) {
  int64_t nodes = 0;
  prepare_device(d, &row, shape, NULL);
  if (g_type == LS_CPU) {
    forward(d, kDecodeRows);
    return;
  }
  if (*graph == NULL) {
    OK(ls_graph_begin_capture(g_type, 0, g_stream));
    forward(d, kDecodeRows);
    OK(ls_graph_end_capture(g_type, 0, g_stream, graph));
    OK(ls_graph_num_nodes(*graph, &nodes));
    CHECK(nodes >= 2);
  }
  OK(ls_graph_launch(*graph, g_stream));
}

static void move_through_a_pack(device_engine* d, int32_t from, int32_t to) {
  static char pack[kPackBytes], again[kPackBytes];
  ls_slot_staging staging;
  ls_memory* pinned = NULL;
  ls_slot_restore restore;
  ls_row row = row_of(to, LS_ROW_EXTEND, kTokens, 0);
  int64_t written = 0, second = 0, position = 0, bytes = 0;
  LS_INIT(&staging);
  OK(ls_slot_staging_bytes(d->pool, &bytes));
  CHECK((bytes > 0) == (g_type != LS_CPU));
  OK(ls_memory_create_pinned(g_type, 0, bytes + 64, &pinned));
  OK(ls_memory_data(pinned, &staging.buffer));
  staging.size = (size_t)bytes;
  staging.stream = g_stream;
  OK(ls_pack_slot_staged(d->pool, from, kTokens, LS_PACK_EXACT, pack, sizeof pack, &staging,
                         &written));
  OK(ls_unpack_slot_staged(pack, (size_t)written, d->pool, to, NULL, &staging, &position));
  OK(ls_synchronize(g_type, 0, g_stream));
  CHECK(position == kTokens);
  OK(ls_pack_slot_staged(d->pool, to, kTokens, LS_PACK_EXACT, again, sizeof again, &staging,
                         &second));
  CHECK(second == written && memcmp(pack, again, (size_t)written) == 0);
  /* And as the deferred work of a batch, into the slot behind it. */
  LS_INIT(&restore);
  restore.pack = pack;
  restore.pack_size = (size_t)written;
  restore.slot = row.slot = to + 1;
  prepare_device(d, &row, NULL, &restore);
  OK(ls_pack_slot_staged(d->pool, to + 1, kTokens, LS_PACK_EXACT, again, sizeof again, &staging,
                         &second));
  CHECK(second == written && memcmp(pack, again, (size_t)written) == 0);
  ls_memory_destroy(pinned);
}

static void test_serving(void) {
  static outputs want;
  engine host = make_engine(NULL);
  device_engine d = make_device_engine();
  ls_batch_shape shape;
  ls_graph* graph = NULL;
  ls_row row = row_of(0, LS_ROW_EXTEND, 0, kPrompt);
  int32_t type = -1, index = -1;
  size_t planes = 0;
  OK(ls_pool_device(d.pool, &type, &index));
  CHECK(type == g_type && index == 0);
  OK(ls_metadata_device(d.metadata, &type, &index));
  CHECK(type == g_type && index == 0);
  OK(ls_pool_planes(d.pool, NULL, 0, &planes));
  CHECK(planes == 3); /* two states and a window */
  run(&host, row, &want);
  bring_tokens(&d, 0, kPrompt);
  prepare_device(&d, &row, NULL, NULL);
  forward(&d, kPrompt);
  compare_outputs(&d, &want, 0, kPrompt);
  LS_INIT(&shape);
  shape.decode_rows = kDecodeRows;
  for (int64_t at = kPrompt; at < kTokens; ++at) {
    row = row_of(0, LS_ROW_DECODE, at, 1);
    run(&host, row, &want);
    bring_tokens(&d, at, 1);
    decode(&d, row, &shape, &graph);
    compare_outputs(&d, &want, at, 1);
  }
  OK(ls_metadata_read_taken(d.metadata, &d.context));
  move_through_a_pack(&d, 0, 1);
  expect_clean(&d);
  ls_graph_destroy(graph);
  end_device_engine(&d);
  end_engine(&host);
}

static void test_events_and_polls(void) {
  ls_event* event = NULL;
  ls_status_block* block = NULL;
  ls_status_poll* poll = NULL;
  ls_device_status* address = NULL;
  ls_device_status seen;
  void* handle = NULL;
  int32_t ready = 0;
  OK(ls_event_create(g_type, 0, &event));
  OK(ls_event_record(event, g_stream));
  OK(ls_event_wait(event));
  OK(ls_event_handle(event, &handle));
  CHECK(ls_event_passed(handle) && ls_event_passed(NULL));
  ls_event_destroy(event);
  OK(ls_status_block_create(g_type, 0, &block));
  OK(ls_status_block_address(block, &address));
  OK(ls_status_poll_create(g_type, 0, &poll));
  OK(ls_status_poll_ready(poll, &seen, &ready));
  CHECK(ready == 0);
  OK(ls_status_poll_start(poll, address, g_stream));
  FAILS(LS_FAILED_PRECONDITION, "ready()", ls_status_poll_start(poll, address, g_stream));
  OK(ls_synchronize(g_type, 0, g_stream));
  OK(ls_status_poll_ready(poll, &seen, &ready));
  CHECK(ready == 1);
  OK(ls_status_block_reset(block, g_stream));
  ls_status_poll_destroy(poll);
  ls_status_block_destroy(block);
}

static void test_errors(void) {
  ls_memory* memory = NULL;
  ls_graph* graph = NULL;
  ls_place to = on_host(NULL);
  ls_batch_shape shape;
  ls_forward_batch batch;
  ls_row row = row_of(0, LS_ROW_DECODE, 4, 1);
  device_engine d = make_device_engine();
  FAILS(LS_INVALID_ARGUMENT, "device_type", ls_memory_create(9, 0, 8, &memory));
  FAILS(LS_INVALID_ARGUMENT, "bytes", ls_memory_create(LS_CPU, 0, -1, &memory));
  FAILS(LS_INVALID_ARGUMENT, "out", ls_memory_create(LS_CPU, 0, 8, NULL));
  FAILS(LS_INVALID_ARGUMENT, "dst.data", ls_fill_bytes(&to, 0, 8, NULL));
  FAILS(LS_INVALID_ARGUMENT, "dst.data", ls_copy_bytes(&to, &to, 8, NULL));
  FAILS(LS_INVALID_ARGUMENT, "memory", ls_memory_data(NULL, NULL));
  FAILS(LS_UNSUPPORTED, "graphs", ls_graph_begin_capture(LS_CPU, 0, NULL));
  FAILS(LS_INVALID_ARGUMENT, "graph", ls_graph_launch(NULL, NULL));
  CHECK(graph == NULL);
  LS_INIT(&shape);
  LS_INIT(&batch);
  shape.extend_rows = 1; /* no room for the decode row */
  batch.rows = &row;
  batch.num_rows = 1;
  batch.shape = &shape;
  FAILS(LS_INVALID_ARGUMENT, "shape.decode.rows",
        ls_metadata_prepare(d.metadata, &batch, d.pool, &d.context));
  shape.struct_size = 3;
  FAILS(LS_INVALID_ARGUMENT, "batch.shape",
        ls_metadata_prepare(d.metadata, &batch, d.pool, &d.context));
  end_device_engine(&d);
  ls_memory_destroy(NULL);
  ls_stream_destroy(NULL);
  ls_event_destroy(NULL);
  ls_graph_destroy(NULL);
  ls_status_block_destroy(NULL);
  ls_status_poll_destroy(NULL);
}

int main(void) {
  char devices[4096];
  ls_stream* stream = NULL;
  OK(ls_list_devices(devices, sizeof devices, NULL));
  if (strstr(devices, "cuda:0") != NULL) g_type = LS_CUDA;
  printf("on %s\n", g_type == LS_CUDA ? "cuda:0" : "the cpu");
  OK(ls_stream_create(g_type, 0, &stream));
  OK(ls_stream_handle(stream, &g_stream));
  fill_all();
  test_events_and_polls();
  test_serving();
  test_errors();
  ls_stream_destroy(stream);
  return report();
}
