// The rules a ForwardBatch must keep, checked on the host before anything happens.
#pragma once

#include <cstdint>

#include "linestate/forward_batch.h"
#include "linestate/status.h"

namespace linestate {

/// Everything ForwardMetadata::prepare promises to refuse. Messages name the row and the field.
Status check_batch(const ForwardBatch& batch, int64_t max_rows, int64_t num_slots);

}  // namespace linestate
