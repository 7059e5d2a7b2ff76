// The CPU's side: everything is done when the call returns.
#include "linestate/device_staging.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/device_status.h"
#include "cuda/matrix_copy.h"
#include "linestate/trace_range.h"

namespace linestate {
namespace {

constexpr Device kExternal{DeviceType::kExternal, 2};

TEST(PinnedMemory, IsAlignedMovesAndRefuses) {
  Result<PinnedMemory> memory = PinnedMemory::allocate({}, 100);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 256, 0u);
  EXPECT_EQ(memory->bytes(), 100);
  void* data = memory->data();
  PinnedMemory moved;
  moved = std::move(memory).value();
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(PinnedMemory::allocate({}, 0)->data(), nullptr);
  EXPECT_EQ(PinnedMemory::allocate({}, -1).status().message(), "bytes: expected >= 0, got -1");
  EXPECT_EQ(PinnedMemory::allocate(kExternal, 8).status().message(),
            "device: expected cpu or cuda, got external:2");
}

TEST(CopyAsync, CopiesAndRefuses) {
  const std::vector<int32_t> from = {1, 2, 3};
  std::vector<int32_t> to(3);
  ASSERT_TRUE(copy_bytes_async({to.data(), {}}, {from.data(), {}}, 12).ok());
  EXPECT_EQ(to, from);
  EXPECT_EQ(copy_bytes_async({to.data(), kExternal}, {from.data(), {}}, 12).code(),
            StatusCode::kUnsupported);
}

TEST(CopyRuns, KeepsWhatLiesBetweenTheRuns) {
  const std::vector<uint8_t> from = {1, 2, 0, 3, 4, 0, 5, 6};
  std::vector<uint8_t> to(12, 9);
  ASSERT_TRUE(copy_runs_async({to.data(), {}}, 4, {from.data(), {}}, 3, 2, 3, nullptr).ok());
  EXPECT_EQ(to, (std::vector<uint8_t>{1, 2, 9, 9, 3, 4, 9, 9, 5, 6, 9, 9}));
}

TEST(DeviceEvent, HasAlwaysPassedOnTheCpu) {
  Result<DeviceEvent> event = DeviceEvent::create({});
  ASSERT_TRUE(event.ok());
  EXPECT_TRUE(event->record().ok());
  EXPECT_TRUE(event->done());
  EXPECT_TRUE(event->wait().ok());
  EXPECT_TRUE(DeviceEvent::passed(nullptr));
}

TEST(StatusPoll, IsReadyOnceAStart) {
  DeviceStatus status;
  raise_flag(&status, DeviceFlag::kBadParent, 4);
  Result<StatusPoll> poll = StatusPoll::create({});
  ASSERT_TRUE(poll.ok());
  DeviceStatus seen;
  EXPECT_FALSE(poll->ready(seen));
  ASSERT_TRUE(poll->start(&status).ok());
  EXPECT_EQ(poll->start(&status).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(poll->ready(seen));
  EXPECT_EQ(seen.row_of(DeviceFlag::kBadParent), 4);
  EXPECT_FALSE(poll->ready(seen));
}

TEST(DeviceGraph, NeedsAGpu) {
  const TraceRange range("a range that nobody watches");
  EXPECT_EQ(DeviceGraph::begin_capture({}, nullptr).message(), "graphs: expected cuda, got cpu");
  EXPECT_FALSE(DeviceGraph::capturing({}, nullptr));
  EXPECT_EQ(DeviceGraph().launch(nullptr).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace linestate
