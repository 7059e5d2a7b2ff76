// main() of the test suites that run on a GPU: tests of operators, with every "cpu" row replaced by
// the "cuda" row. Exit code 77 where there is no GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "cuda/cuda_devices.h"
#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"
#include "ops/causal_conv1d/update/causal_conv1d_update_kernels.h"
#include "ops/causal_conv1d/verify/causal_conv1d_verify_kernels.h"
#include "ops/draft_tree/from_links/tree_from_links_kernels.h"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/decode_step/kda_decode_step_kernels.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"
#include "ops/kda/replay/kda_decode_replay_kernels.h"
#include "ops/kda/verify/kda_verify_kernels.h"
#include "ops/lightning/commit/lightning_commit_kernels.h"
#include "ops/lightning/decode/lightning_decode_kernels.h"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"
#include "ops/lightning/replay/lightning_decode_replay_kernels.h"
#include "ops/lightning/verify/lightning_verify_kernels.h"
#include "ops/norm/gated_rms_norm/gated_rms_norm_kernels.h"
#include "ops/norm/group_rms_norm/group_rms_norm_kernels.h"
#include "ops/norm/rms_sum_sq/rms_sum_sq_kernels.h"
#include "ops/replay/fold/replay_fold_kernels.h"
#include "ops/replay/step_begin/replay_step_begin_kernels.h"
#include "ops/state_ops/clear/state_clear_kernels.h"
#include "ops/state_ops/copy/state_copy_kernels.h"
#include "tests/gpu/mirrored_rows_fixture.h"

namespace {

// Tests of the host alone: those over terabytes of address space without memory behind it
// (DeviceValues.ASlotBeyond31Bits does the same on the device), and two that ask the "cpu" row for
// its scratch memory.
constexpr const char* kHostOnly =
    "*OffsetsBeyond31Bits*:*AnyStridesAndBigPools*:*SlotsBeyond31Bits*:*BeyondFourBillion*:"
    "*LongWidePitchedPrefill*:KdaCheck.WorkspaceAndKernelNames:*LightningContract."
    "WorkspaceAndNames*";

/// True when nothing else is filtered out, so that the rest is what was left out here.
bool leave_out_host_tests() {
  std::string filter = GTEST_FLAG_GET(filter);
  const bool all = filter == "*";
  filter += filter.find('-') == std::string::npos ? "-" : ":";
  GTEST_FLAG_SET(filter, filter + kHostOnly);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace linestate;
  using namespace linestate::testing;
  ::testing::InitGoogleTest(&argc, argv);
  const bool all = leave_out_host_tests();
  const Result<std::vector<CudaDevice>> devices = list_cuda_devices();
  if (!devices.ok() && !GTEST_FLAG_GET(list_tests)) {
    std::printf("skipped, waits for an NVIDIA GPU: %s\n", devices.status().message().c_str());
    return 77;
  }
  mirror_rows(causal_conv1d_prefill_table());
  mirror_rows(causal_conv1d_update_table());
  mirror_rows(causal_conv1d_verify_table());
  mirror_rows(tree_from_links_table());
  mirror_rows(kda_commit_table());
  mirror_rows(kda_decode_table());
  mirror_rows(kda_decode_step_table());
  mirror_rows(kda_prefill_table());
  mirror_rows(kda_decode_replay_table());
  mirror_rows(kda_verify_table());
  mirror_rows(lightning_commit_table());
  mirror_rows(lightning_decode_table());
  mirror_rows(lightning_prefill_table());
  mirror_rows(lightning_decode_replay_table());
  mirror_rows(lightning_verify_table());
  mirror_rows(gated_rms_norm_table());
  mirror_rows(group_rms_norm_table());
  mirror_rows(rms_sum_sq_table());
  mirror_rows(replay_fold_table());
  mirror_rows(replay_step_begin_table());
  mirror_rows(state_clear_table());
  mirror_rows(state_copy_table());
  const int result = RUN_ALL_TESTS();
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  if (all && !GTEST_FLAG_GET(list_tests)) {
    std::printf("%d tests of the host alone were skipped: the builds for the CPU run them.\n",
                tests.total_test_count() - tests.test_to_run_count());
  }
  return result;
}
