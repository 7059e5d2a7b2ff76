/* Kernels registered from C: one for every operator that hands its problem back to the library's
 * `cpu`, so that whatever is lost on the way out or in changes a bit; then refusals and errors. */
#include "tests/c_engine.h"

#define FOR_EACH_OP(DO)                                    \
  DO(causal_conv1d_prefill, ls_causal_conv1d_params)       \
  DO(causal_conv1d_update, ls_causal_conv1d_params)        \
  DO(causal_conv1d_verify, ls_causal_conv1d_verify_params) \
  DO(kda_prefill, ls_kda_params)                           \
  DO(kda_decode, ls_kda_params)                            \
  DO(kda_verify, ls_kda_verify_params)                     \
  DO(kda_commit, ls_kda_commit_params)                     \
  DO(kda_decode_replay, ls_kda_replay_params)              \
  DO(lightning_prefill, ls_lightning_params)               \
  DO(lightning_decode, ls_lightning_params)                \
  DO(lightning_verify, ls_lightning_verify_params)         \
  DO(lightning_commit, ls_lightning_commit_params)         \
  DO(lightning_decode_replay, ls_lightning_replay_params)  \
  DO(gated_rms_norm, ls_gated_rms_norm_params)             \
  DO(group_rms_norm, ls_group_rms_norm_params)             \
  DO(rms_sum_sq, ls_rms_sum_sq_params)                     \
  DO(tree_from_links, ls_tree_from_links_params)           \
  DO(state_clear, ls_state_clear_params)                   \
  DO(state_copy, ls_state_copy_params)                     \
  DO(replay_step_begin, ls_replay_step_params)             \
  DO(replay_fold, ls_replay_fold_params)

/* run and workspace_bytes of one operator; `user` counts the runs. */
#define DEFINE_MIRROR(op, params_type)                                                   \
  static ls_status run_##op(const void* params, const ls_context* context, void* user,   \
                            char* error, size_t size) {                                  \
    const ls_status status = ls_##op((const params_type*)params, context, "cpu");        \
    ++*(int*)user;                                                                       \
    if (status != LS_OK) snprintf(error, size, "%s", ls_last_error());                   \
    return status;                                                                       \
  }                                                                                      \
  static int64_t bytes_##op(const void* params, const ls_context* context, void* user) { \
    int64_t bytes = -1;                                                                  \
    (void)user;                                                                          \
    OK(ls_##op##_workspace_bytes((const params_type*)params, context, "cpu", &bytes));   \
    return bytes;                                                                        \
  }
FOR_EACH_OP(DEFINE_MIRROR)

typedef struct mirror {
  const char* op;
  ls_status (*run)(const void*, const ls_context*, void*, char*, size_t);
  int64_t (*bytes)(const void*, const ls_context*, void*);
  int calls;
} mirror;

#define MIRROR_OF(op, params_type) {#op, run_##op, bytes_##op, 0},
static mirror mirrors[] = {FOR_EACH_OP(MIRROR_OF)};
enum { kOps = sizeof mirrors / sizeof *mirrors };

static void register_mirrors(void) {
  for (int i = 0; i < kOps; ++i) {
    ls_kernel kernel;
    LS_INIT(&kernel);
    kernel.name = "mirror";
    kernel.summary = "gives the problem back";
    kernel.run = mirrors[i].run;
    kernel.workspace_bytes = mirrors[i].bytes;
    kernel.user = &mirrors[i].calls;
    OK(ls_register_kernel(mirrors[i].op, &kernel));
    FAILS(LS_INVALID_ARGUMENT, "mirror", ls_register_kernel(mirrors[i].op, &kernel));
  }
}

/* A request through every phase, with rings of `ring` tokens. */
static void serve(int64_t ring, outputs* out, float* states, size_t count) {
  engine e = make_engine(NULL);
  const float* slopes_of[2] = {NULL, slopes};
  const int32_t zero[] = {3}, from[] = {0}, to[] = {1}, fold[] = {1};
  ls_pool_spec spec;
  ls_forward_batch batch;
  ls_row row = row_of(0, LS_ROW_EXTEND, 0, 1);
  ls_tensor view, slots = dense((void*)fold, LS_I32, 1, 1, 0, 0);
  size_t at = 0;
  ls_pool_destroy(e.pool);
  LS_INIT(&spec);
  spec.model = e.model;
  spec.replay_length = ring;
  spec.replay_slopes = slopes_of;
  OK(ls_pool_create(&spec, kSlots, LS_CPU, 0, &e.pool));
  run(&e, row_of(0, LS_ROW_EXTEND, 0, 1), out);
  for (int t = 1; t < 4; ++t) run(&e, row_of(0, LS_ROW_DECODE, t, 1), out);
  LS_INIT(&batch); /* folds, clears and copies */
  row.slot = 2;
  batch.rows = &row;
  batch.num_rows = 1;
  batch.clear = zero;
  batch.num_clears = 1;
  batch.copy_src = from;
  batch.copy_dst = to;
  batch.num_copies = 1;
  OK(ls_metadata_prepare(e.metadata, &batch, e.pool, &e.context));
  run(&e, row_of(1, LS_ROW_VERIFY, 4, 3), out);
  commit(&e, 2);
  run(&e, row_of(1, LS_ROW_DECODE, 7, 1), out);
  OK(ls_pool_fold(e.pool, &slots, &e.context));
  for (int64_t layer = 0; layer < 2; ++layer) {
    OK(ls_pool_recurrent(e.pool, layer, &view));
    for (int64_t i = 0; i < view.stride[0] && at < count; ++i) {
      states[at++] = ((float*)view.data)[view.stride[0] + i];
    }
  }
  CHECK(at == count);
  end_engine(&e);
}

enum { kState = (kHV + kH) * kD * kD };

static void test_every_operator_through_a_c_kernel(void) {
  static outputs plain[2], mirrored[2]; /* without rings, and with */
  static float plain_state[2][kState], mirrored_state[2][kState];
  static float x[2 * 8], weight[8], norm[2 * 8], want[2 * 8], sum[2], want_sum[2];
  int32_t child[] = {1, -1, -1}, sibling[] = {-1, 2, -1}, parent[3];
  ls_context context;
  ls_group_rms_norm_params group;
  ls_rms_sum_sq_params square;
  ls_tree_from_links_params tree;
  serve(1, &plain[0], plain_state[0], kState);
  serve(4, &plain[1], plain_state[1], kState);
  FILL(x, 40, 1.0f);
  FILL(weight, 41, 1.0f);
  LS_INIT(&context);
  LS_INIT(&group);
  group.x = dense(x, LS_F32, 2, 2, 8, 0);
  group.weight = dense(weight, LS_F32, 1, 8, 0, 0);
  group.num_groups = 2;
  group.out = dense(want, LS_F32, 2, 2, 8, 0);
  OK(ls_group_rms_norm(&group, &context, "cpu"));
  LS_INIT(&square);
  square.x = group.x;
  square.sum_sq = dense(want_sum, LS_F32, 2, 2, 1, 0);
  OK(ls_rms_sum_sq(&square, &context, "cpu"));

  register_mirrors();
  serve(1, &mirrored[0], mirrored_state[0], kState); /* auto: the registered ones come first */
  serve(4, &mirrored[1], mirrored_state[1], kState);
  CHECK(memcmp(plain, mirrored, sizeof plain) == 0);
  CHECK(memcmp(plain_state, mirrored_state, sizeof plain_state) == 0);
  group.out = dense(norm, LS_F32, 2, 2, 8, 0);
  OK(ls_group_rms_norm(&group, &context, NULL));
  CHECK(memcmp(norm, want, sizeof norm) == 0);
  square.sum_sq = dense(sum, LS_F32, 2, 2, 1, 0);
  OK(ls_rms_sum_sq(&square, &context, "mirror"));
  CHECK(memcmp(sum, want_sum, sizeof sum) == 0 && sum[0] > 0.0f);
  LS_INIT(&tree);
  tree.first_child = dense(child, LS_I32, 2, 1, 3, 0);
  tree.next_sibling = dense(sibling, LS_I32, 2, 1, 3, 0);
  tree.parent = dense(parent, LS_I32, 2, 1, 3, 0);
  OK(ls_tree_from_links(&tree, &context, NULL));
  CHECK(parent[0] == -1 && parent[1] == 0 && parent[2] == 0);
  for (int i = 0; i < kOps; ++i) {
    if (mirrors[i].calls == 0) printf("%s did not reach its kernel\n", mirrors[i].op);
    CHECK(mirrors[i].calls > 0);
    OK(ls_unregister_kernel(mirrors[i].op, "mirror"));
    FAILS(LS_NOT_FOUND, "mirror", ls_unregister_kernel(mirrors[i].op, "mirror"));
  }
}

static int32_t refuse_wide(const void* params, const ls_context* context, void* user, char* reason,
                           size_t size) {
  const ls_rms_sum_sq_params* p = params;
  (void)context;
  (void)user;
  if (p->x.shape[1] <= 8) return 0;
  snprintf(reason, size, "x: expected up to 8 channels, got %d", (int)p->x.shape[1]);
  return 1;
}

static ls_status fail_with(const void* params, const ls_context* context, void* user, char* error,
                           size_t size) {
  const int code = *(const int*)user;
  (void)params;
  (void)context;
  if (code == LS_DEVICE) snprintf(error, size, "the device is on fire");
  return (ls_status)code;
}

static ls_status answer_42(const void* params, const ls_context* context, void* user, char* error,
                           size_t size) {
  const ls_rms_sum_sq_params* p = params;
  (void)user;
  (void)error;
  (void)size;
  CHECK(context->device_type == LS_EXTERNAL && context->device_index == 3);
  ((float*)p->sum_sq.data)[0] = 42.0f;
  return LS_OK;
}

static void test_refusals_errors_and_devices(void) {
  static float x[16], sum[1];
  int code = LS_DEVICE;
  char text[512];
  ls_context context;
  ls_kernel kernel;
  ls_rms_sum_sq_params p;
  LS_INIT(&context);
  LS_INIT(&p);
  p.x = dense(x, LS_F32, 2, 1, 16, 0);
  p.sum_sq = dense(sum, LS_F32, 2, 1, 1, 0);
  LS_INIT(&kernel);
  FAILS(LS_INVALID_ARGUMENT, "name", ls_register_kernel("rms_sum_sq", &kernel));
  kernel.name = "narrow";
  FAILS(LS_INVALID_ARGUMENT, "run", ls_register_kernel("rms_sum_sq", &kernel));
  kernel.run = fail_with;
  kernel.user = &code;
  kernel.refuse = refuse_wide;
  FAILS(LS_NOT_FOUND, "no_such_op", ls_register_kernel("no_such_op", &kernel));
  FAILS(LS_INVALID_ARGUMENT, "kernel", ls_register_kernel("rms_sum_sq", NULL));
  FAILS(LS_INVALID_ARGUMENT, "op", ls_register_kernel(NULL, &kernel));
  kernel.device_type = 9;
  FAILS(LS_INVALID_ARGUMENT, "device_type", ls_register_kernel("rms_sum_sq", &kernel));
  kernel.device_type = LS_CPU;
  OK(ls_register_kernel("rms_sum_sq", &kernel));
  OK(ls_rms_sum_sq_explain(&p, &context, NULL, text, sizeof text, NULL));
  CHECK(strstr(text, "not narrow: x: expected up to 8 channels, got 16") != NULL);
  FAILS(LS_UNSUPPORTED, "got 16", ls_rms_sum_sq(&p, &context, "narrow"));
  OK(ls_rms_sum_sq(&p, &context, NULL)); /* the next in the table */
  context.strict = 1;
  FAILS(LS_UNSUPPORTED, "narrow refused", ls_rms_sum_sq(&p, &context, NULL));
  context.strict = 0;
  p.x = dense(x, LS_F32, 2, 1, 8, 0);
  FAILS(LS_DEVICE, "on fire", ls_rms_sum_sq(&p, &context, NULL));
  code = LS_IO;
  FAILS(LS_IO, "kernel narrow: failed", ls_rms_sum_sq(&p, &context, NULL));
  code = 4711;
  FAILS(LS_INTERNAL, "status 4711", ls_rms_sum_sq(&p, &context, NULL));
  OK(ls_list_kernels(text, sizeof text, NULL));
  CHECK(strstr(text, "rms_sum_sq\tnarrow\tcpu\t") != NULL);
  OK(ls_unregister_kernel("rms_sum_sq", "narrow"));

  LS_INIT(&kernel); /* a device that only this kernel knows */
  kernel.name = "abacus";
  kernel.device_type = LS_EXTERNAL;
  kernel.run = answer_42;
  OK(ls_register_kernel("rms_sum_sq", &kernel));
  context.device_type = p.x.device_type = p.sum_sq.device_type = LS_EXTERNAL;
  context.device_index = p.x.device_index = p.sum_sq.device_index = 3;
  OK(ls_rms_sum_sq(&p, &context, NULL));
  CHECK(sum[0] == 42.0f);
  OK(ls_unregister_kernel("rms_sum_sq", "abacus"));
  FAILS(LS_UNSUPPORTED, "external", ls_rms_sum_sq(&p, &context, NULL));
}

int main(void) {
  fill_all();
  test_every_operator_through_a_c_kernel();
  test_refusals_errors_and_devices();
  return report();
}
