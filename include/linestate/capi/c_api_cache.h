/* The prefix cache and slot packs: prefix_cache.h and state/slot_pack.h say how they work. */
#ifndef LINESTATE_C_API_CACHE_H_
#define LINESTATE_C_API_CACHE_H_

#include "linestate/capi/c_api_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One owner thread, its leases included. Destroying a cache forgets its slots: clear it first. */
typedef struct ls_prefix_cache ls_prefix_cache;
/* One reader's hold on a snapshot; may outlive the cache. */
typedef struct ls_prefix_lease ls_prefix_lease;

typedef struct ls_prefix_cache_options {
  size_t struct_size;
  int64_t block_tokens; /* 0 = LS_CHUNK_TOKENS */
  int64_t byte_budget;
  int64_t bytes_per_snapshot;
} ls_prefix_cache_options;

typedef struct ls_prefix_cache_stats {
  size_t struct_size;
  int64_t lookups;
  int64_t hits;
  int64_t hit_tokens;
  int64_t inserted;
  int64_t duplicates;
  int64_t rejected;
  int64_t evicted;
  int64_t entries;
  int64_t leased;
  int64_t bytes;
} ls_prefix_cache_stats;

typedef enum ls_insert_outcome {
  LS_INSERTED = 0,
  LS_DUPLICATE = 1,
  LS_NO_ROOM = 2
} ls_insert_outcome;

LS_API ls_status ls_prefix_cache_create(const ls_prefix_cache_options* options,
                                        ls_prefix_cache** out);
LS_API void ls_prefix_cache_destroy(ls_prefix_cache* cache);
/* Longest snapshot of a proper prefix. A miss: *lease null, *slot LS_PAD_SLOT, *position 0. */
LS_API ls_status ls_prefix_cache_match(ls_prefix_cache* cache, const int64_t* tokens,
                                       size_t num_tokens, ls_prefix_lease** lease, int32_t* slot,
                                       int64_t* position);
/* Ends the hold. */
LS_API void ls_prefix_lease_destroy(ls_prefix_lease* lease);
LS_API ls_status ls_prefix_cache_contains(const ls_prefix_cache* cache, const int64_t* tokens,
                                          size_t num_tokens, int64_t position, int32_t* contains);
/* Takes `slot` as the snapshot of tokens[0, position). On an error the slot stays the caller's. */
LS_API ls_status ls_prefix_cache_insert(ls_prefix_cache* cache, const int64_t* tokens,
                                        size_t num_tokens, int64_t position, int32_t slot,
                                        int32_t* outcome);
/* Up to `count` snapshots leave, least recently used first. */
LS_API ls_status ls_prefix_cache_evict(ls_prefix_cache* cache, int64_t count);
/* All leave. Errors: LS_FAILED_PRECONDITION while any is leased. */
LS_API ls_status ls_prefix_cache_clear(ls_prefix_cache* cache);
/* Slots that insert, evict and clear gave back wait here, in order, until the caller takes them:
 * up to `capacity` at a time into `slots`; *count says how many. Each is then the caller's. */
LS_API ls_status ls_prefix_cache_take_freed(ls_prefix_cache* cache, int32_t* slots, size_t capacity,
                                            size_t* count);
/* One snapshot leaves; its slot is the caller's at once. */
LS_API ls_status ls_prefix_cache_erase(ls_prefix_cache* cache, const int64_t* tokens,
                                       size_t num_tokens, int64_t position, int32_t* slot);
/* The leased snapshot itself leaves; its slot is the caller's and the lease holds nothing. */
LS_API ls_status ls_prefix_cache_take(ls_prefix_cache* cache, ls_prefix_lease* lease,
                                      int32_t* slot);
LS_API ls_status ls_prefix_cache_get_stats(const ls_prefix_cache* cache,
                                           ls_prefix_cache_stats* stats);

typedef enum ls_pack_scheme { LS_PACK_EXACT = 0, LS_PACK_F16 = 1, LS_PACK_INT8 = 2 } ls_pack_scheme;

typedef struct ls_unpack_options {
  size_t struct_size;
  int32_t allow_state_dtype_change;
  int32_t allow_other_numerics;
} ls_unpack_options;

LS_API ls_status ls_slot_pack_bytes(const ls_pool_spec* spec, int32_t scheme, int64_t* bytes);
/* The slot's state after `position` tokens into out[0, size); *written bytes of it are used. */
LS_API ls_status ls_pack_slot(const ls_pool* pool, int32_t slot, int64_t position, int32_t scheme,
                              void* out, size_t size, int64_t* written);
/* Restores a pack and its position; options: null = strict. */
LS_API ls_status ls_unpack_slot(const void* buffer, size_t size, const ls_pool* pool, int32_t slot,
                                const ls_unpack_options* options, int64_t* position);

/* Host memory that the slot of a pool on a device passes through. */
typedef struct ls_slot_staging {
  size_t struct_size;
  void* stream; /* of the pool's device; copies are queued on it */
  void* buffer; /* ls_slot_staging_bytes of it, page-locked if the call is not to wait */
  size_t size;
} ls_slot_staging;

/* 0 for a pool on the CPU, which needs no staging. */
LS_API ls_status ls_slot_staging_bytes(const ls_pool* pool, int64_t* bytes);
/* As the two above for a pool on any device; packing waits for the stream, unpacking leaves its
 * copies queued: the staging must stay until the stream has passed them. */
LS_API ls_status ls_pack_slot_staged(const ls_pool* pool, int32_t slot, int64_t position,
                                     int32_t scheme, void* out, size_t size,
                                     const ls_slot_staging* staging, int64_t* written);
LS_API ls_status ls_unpack_slot_staged(const void* buffer, size_t size, const ls_pool* pool,
                                       int32_t slot, const ls_unpack_options* options,
                                       const ls_slot_staging* staging, int64_t* position);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_CACHE_H_ */
