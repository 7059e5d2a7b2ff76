// What the opaque handles hold, and the structs that more than one file reads.
#pragma once

#include <vector>

#include "capi/reader.h"
#include "linestate/prefix_cache.h"
#include "linestate/state/slot_pack.h"

struct ls_model {
  linestate::ModelConfig config;
};

struct ls_pool {
  linestate::StatePool pool;
};

struct ls_metadata {
  linestate::ForwardMetadata metadata;
  size_t num_snapshots = 0;  // requests of the prepared batch
};

struct ls_records {
  linestate::VerifyRecords records;
  std::vector<linestate::LayerKind> kinds{};
};

struct ls_kda_backend {
  linestate::KdaBackend backend;
};

struct ls_lightning_backend {
  linestate::LightningBackend backend;
};

struct ls_prefix_cache {
  linestate::PrefixCache cache;
  std::vector<int32_t> freed{};  // slots that the caller has not taken yet
};

struct ls_prefix_lease {
  linestate::PrefixCache::Lease lease;
};

namespace linestate::capi {

/// Checked: sizes computed from the result do not overflow.
Result<PoolSpec> to_pool_spec(const ls_pool_spec* spec);

}  // namespace linestate::capi
