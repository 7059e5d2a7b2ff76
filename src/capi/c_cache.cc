#include "capi/handles.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

template <typename Handle, typename Use>
ls_status with_cache(Handle* cache, const Use& use) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"cache", cache}}));
    return use(*cache);
  });
}

/// As with_cache, with tokens[0, count).
template <typename Handle, typename Use>
ls_status with_tokens(Handle* cache, const int64_t* tokens, size_t count, const Use& use) {
  return with_cache(cache, [&](auto& handle) -> Status {
    if (count > 0) LINESTATE_RETURN_IF_ERROR(require({{"tokens", tokens}}));
    return use(handle.cache, std::span<const int64_t>(tokens, count));
  });
}

// Room for every slot the cache could give back, so that none is lost for want of memory later.
void reserve_freed(ls_prefix_cache& cache) {
  cache.freed.reserve(cache.freed.size() + static_cast<size_t>(cache.cache.stats().entries) + 1);
}

void append(std::vector<int32_t>& freed, const std::vector<int32_t>& slots) {
  freed.insert(freed.end(), slots.begin(), slots.end());
}

Status read_scheme(int32_t value, PackScheme* scheme) {
  Reader reader;
  reader.choice("scheme", value, PackScheme::kInt8, scheme);
  return reader.status();
}

}  // namespace

ls_status ls_prefix_cache_create(const ls_prefix_cache_options* options, ls_prefix_cache** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    ls_prefix_cache_options from{};
    LINESTATE_RETURN_IF_ERROR(load("options", options, &from));
    return put_handle(out, PrefixCache::create({or_default(from.block_tokens, kChunkTokens),
                                                from.byte_budget, from.bytes_per_snapshot}));
  });
}

void ls_prefix_cache_destroy(ls_prefix_cache* cache) { delete cache; }

ls_status ls_prefix_cache_match(ls_prefix_cache* cache, const int64_t* tokens, size_t num_tokens,
                                ls_prefix_lease** lease, int32_t* slot, int64_t* position) {
  return with_tokens(cache, tokens, num_tokens, [&](PrefixCache& from, auto span) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"lease", lease}, {"slot", slot}, {"position", position}}));
    *lease = nullptr;
    auto hit = std::make_unique<ls_prefix_lease>();  // before anything is counted or held
    hit->lease = from.match(span);
    *slot = hit->lease.slot();
    *position = hit->lease.position();
    if (hit->lease.held()) *lease = hit.release();
    return {};
  });
}

void ls_prefix_lease_destroy(ls_prefix_lease* lease) { delete lease; }

ls_status ls_prefix_cache_contains(const ls_prefix_cache* cache, const int64_t* tokens,
                                   size_t num_tokens, int64_t position, int32_t* contains) {
  return with_tokens(cache, tokens, num_tokens, [&](const PrefixCache& from, auto span) {
    return put("contains", contains, from.contains(span, position) ? 1 : 0);
  });
}

ls_status ls_prefix_cache_insert(ls_prefix_cache* cache, const int64_t* tokens, size_t num_tokens,
                                 int64_t position, int32_t slot, int32_t* outcome) {
  return with_tokens(cache, tokens, num_tokens, [&](PrefixCache& to, auto span) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"outcome", outcome}}));
    reserve_freed(*cache);
    const Result<PrefixCache::Inserted> inserted = to.insert(span, position, slot);
    if (!inserted.ok()) return inserted.status();
    append(cache->freed, inserted->freed);
    return put("outcome", outcome, inserted->outcome);
  });
}

ls_status ls_prefix_cache_evict(ls_prefix_cache* cache, int64_t count) {
  return with_cache(cache, [&](ls_prefix_cache& handle) -> Status {
    if (count < 0) return invalid_argument("count: expected at least 0, got ", count);
    reserve_freed(handle);
    const PrefixCacheStats stats = handle.cache.stats();
    const std::vector<int32_t> slots = handle.cache.evict(count);
    if (slots.empty() && count > 0 && stats.entries > stats.leased) return out_of_memory();
    append(handle.freed, slots);
    return {};
  });
}

ls_status ls_prefix_cache_clear(ls_prefix_cache* cache) {
  return with_cache(cache, [](ls_prefix_cache& handle) -> Status {
    reserve_freed(handle);
    const Result<std::vector<int32_t>> slots = handle.cache.clear();
    if (!slots.ok()) return slots.status();
    append(handle.freed, *slots);
    return {};
  });
}

ls_status ls_prefix_cache_take_freed(ls_prefix_cache* cache, int32_t* slots, size_t capacity,
                                     size_t* count) {
  return with_cache(cache, [&](ls_prefix_cache& handle) -> Status {
    if (capacity > 0) LINESTATE_RETURN_IF_ERROR(require({{"slots", slots}}));
    LINESTATE_RETURN_IF_ERROR(require({{"count", count}}));
    *count = std::min(capacity, handle.freed.size());
    const auto end = handle.freed.begin() + static_cast<std::ptrdiff_t>(*count);
    std::copy(handle.freed.begin(), end, slots);
    handle.freed.erase(handle.freed.begin(), end);
    return {};
  });
}

ls_status ls_prefix_cache_erase(ls_prefix_cache* cache, const int64_t* tokens, size_t num_tokens,
                                int64_t position, int32_t* slot) {
  return with_tokens(cache, tokens, num_tokens, [&](PrefixCache& from, auto span) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"slot", slot}}));  // before one leaves
    return put_result("slot", slot, from.erase(span, position));
  });
}

ls_status ls_prefix_cache_take(ls_prefix_cache* cache, ls_prefix_lease* lease, int32_t* slot) {
  return with_cache(cache, [&](ls_prefix_cache& handle) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"lease", lease}, {"slot", slot}}));
    return put_result("slot", slot, handle.cache.take(lease->lease));
  });
}

ls_status ls_prefix_cache_get_stats(const ls_prefix_cache* cache, ls_prefix_cache_stats* stats) {
  return with_cache(cache, [&](const ls_prefix_cache& handle) {
    const PrefixCacheStats from = handle.cache.stats();
    const ls_prefix_cache_stats to{sizeof(to),    from.lookups,    from.hits,     from.hit_tokens,
                                   from.inserted, from.duplicates, from.rejected, from.evicted,
                                   from.entries,  from.leased,     from.bytes};
    return store("stats", to, stats);
  });
}

namespace {

/// Null = none.
Status read_staging(const ls_slot_staging* in, SlotStaging* staging) {
  if (in == nullptr) return {};
  ls_slot_staging from{};
  LINESTATE_RETURN_IF_ERROR(load("staging", in, &from));
  if (from.size > 0) LINESTATE_RETURN_IF_ERROR(require({{"staging.buffer", from.buffer}}));
  *staging = {from.stream, {static_cast<std::byte*>(from.buffer), from.size}};
  return {};
}

Status pack(const ls_pool* pool, int32_t slot, int64_t position, int32_t scheme,
            std::span<std::byte> out, const ls_slot_staging* c_staging, int64_t* written) {
  LINESTATE_RETURN_IF_ERROR(require({{"pool", pool}, {"out", out.data()}}));
  PackScheme kind{};
  LINESTATE_RETURN_IF_ERROR(read_scheme(scheme, &kind));
  SlotStaging staging;
  LINESTATE_RETURN_IF_ERROR(read_staging(c_staging, &staging));
  return put_result("written", written, pack_slot(pool->pool, slot, position, kind, out, staging));
}

Status unpack(std::span<const std::byte> buffer, const ls_pool* pool, int32_t slot,
              const ls_unpack_options* options, const ls_slot_staging* c_staging,
              int64_t* position) {
  LINESTATE_RETURN_IF_ERROR(
      require({{"buffer", buffer.data()}, {"pool", pool}, {"position", position}}));
  UnpackOptions allow;
  if (options != nullptr) {
    ls_unpack_options from{};
    LINESTATE_RETURN_IF_ERROR(load("options", options, &from));
    allow = {from.allow_state_dtype_change != 0, from.allow_other_numerics != 0};
  }
  SlotStaging staging;
  LINESTATE_RETURN_IF_ERROR(read_staging(c_staging, &staging));
  return put_result("position", position, unpack_slot(buffer, pool->pool, slot, allow, staging));
}

}  // namespace

ls_status ls_slot_pack_bytes(const ls_pool_spec* spec, int32_t scheme, int64_t* bytes) {
  return fenced([&]() -> Status {
    const Result<PoolSpec> read = to_pool_spec(spec);
    if (!read.ok()) return read.status();
    PackScheme kind{};
    LINESTATE_RETURN_IF_ERROR(read_scheme(scheme, &kind));
    return put_result("bytes", bytes, slot_pack_bytes(*read, kind));
  });
}

ls_status ls_pack_slot(const ls_pool* pool, int32_t slot, int64_t position, int32_t scheme,
                       void* out, size_t size, int64_t* written) {
  return fenced([&]() -> Status {
    return pack(pool, slot, position, scheme, {static_cast<std::byte*>(out), size}, nullptr,
                written);
  });
}

ls_status ls_pack_slot_staged(const ls_pool* pool, int32_t slot, int64_t position, int32_t scheme,
                              void* out, size_t size, const ls_slot_staging* staging,
                              int64_t* written) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"staging", staging}}));
    return pack(pool, slot, position, scheme, {static_cast<std::byte*>(out), size}, staging,
                written);
  });
}

ls_status ls_unpack_slot(const void* buffer, size_t size, const ls_pool* pool, int32_t slot,
                         const ls_unpack_options* options, int64_t* position) {
  return fenced([&]() -> Status {
    return unpack({static_cast<const std::byte*>(buffer), size}, pool, slot, options, nullptr,
                  position);
  });
}

ls_status ls_unpack_slot_staged(const void* buffer, size_t size, const ls_pool* pool, int32_t slot,
                                const ls_unpack_options* options, const ls_slot_staging* staging,
                                int64_t* position) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"staging", staging}}));
    return unpack({static_cast<const std::byte*>(buffer), size}, pool, slot, options, staging,
                  position);
  });
}

ls_status ls_slot_staging_bytes(const ls_pool* pool, int64_t* bytes) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"pool", pool}}));
    return put("bytes", bytes, slot_staging_bytes(pool->pool));
  });
}
