/* What the C programs share: checks that count, and a small engine of two layers. */
#ifndef LINESTATE_TESTS_C_ENGINE_H_
#define LINESTATE_TESTS_C_ENGINE_H_

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "linestate/c_api.h"

extern int g_checks;
extern int g_failures;

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
extern float conv_weight[kChannels * kW], A_log[kHV], dt_bias[kHV * kD], norm_weight[kD];
extern float qkv[kTokens * kChannels], gate[kTokens * kKdaOut], beta[kTokens * kHV];
extern float z[kTokens * kKdaOut], slopes[kH];
extern float q[kTokens * kLightningOut], k[kTokens * kLightningOut], v[kTokens * kLightningOut];

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

#define FILL(array, seed, scale) fill((array), sizeof(array) / sizeof *(array), (seed), (scale))

void fill(float* values, size_t count, uint32_t seed, float scale);
ls_tensor dense(void* data, int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c);
void fill_all(void);
void describe_layers(ls_layer_spec layers[2]);
engine make_engine(const char* kernel);
void end_engine(engine* e);
ls_row row_of(int32_t slot, int32_t kind, int64_t start, int32_t tokens);
ls_kda_weights kda_weights(void);
ls_lightning_weights lightning_weights(void);
ls_kda_io kda_io(int64_t at, int64_t n, outputs* out);
ls_lightning_io lightning_io(int64_t at, int64_t n, outputs* out);
void prepare(engine* e, const ls_row* row);
void run(engine* e, ls_row row, outputs* out);
void commit(engine* e, int32_t accepted);
bool same_state(const engine* e, int32_t a, int32_t b);
/* The exit status of the program. */
int report(void);

#endif /* LINESTATE_TESTS_C_ENGINE_H_ */
