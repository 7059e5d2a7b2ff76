// Umbrella header. See docs/architecture.md for the one way data flows.
#pragma once

#include "linestate/backend.h"
#include "linestate/exec_context.h"
#include "linestate/forward_batch.h"
#include "linestate/kernel_info.h"
#include "linestate/model_config.h"
#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/kda.h"
#include "linestate/ops/lightning.h"
#include "linestate/ops/norm.h"
#include "linestate/ops/state_ops.h"
#include "linestate/rows.h"
#include "linestate/state_pool.h"
#include "linestate/status.h"
#include "linestate/tensor.h"
#include "linestate/tp_shard.h"
#include "linestate/version.h"
