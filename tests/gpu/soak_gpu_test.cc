// A long random life of pools on a GPU: prefills, decodes, verified drafts and snapshots through
// both backends, and of every 16th step the outputs and the states of its rows against `ref`, which
// ran the same batches. Several pools live at the same time, each with a host thread, a stream and
// a seed of its own, because most of a step is the oracle's.
//
// LINESTATE_SOAK_STEPS: steps of all pools together (2000). LINESTATE_SOAK_SEED: of the first pool
// (1). LINESTATE_SOAK_POOLS: as many pools (one a host thread, at most 12).
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/device_engine_fixture.h"

namespace linestate {
namespace {

using testing::DeviceEngine;
using testing::Engine;
using testing::EngineOptions;
using testing::HostTensor;
using testing::Piece;
using testing::StepExtras;

int64_t from_environment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoll(text);
}

// One request a slot; slots behind the requests hold snapshots.
constexpr int kRequests = 5;
constexpr int32_t kSnapshotSlot = 6;
constexpr int32_t kUnusedSlot = 7;      // keeps the bytes that the pool was made with
constexpr int64_t kLongest = 600;       // tokens, then the request starts over
constexpr int64_t kLongestLate = 4000;  // of every fourth pool
constexpr double kOutputLimit = 5e-5;   // f32 in and out, long horizon
constexpr double kStateLimit = 5e-5;

struct Request {
  int id = 0;
  int32_t slot = 0;
  int64_t tokens = 0;
};

class Soak {
 public:
  Soak(uint64_t seed, int64_t longest)
      : random_(seed), longest_(longest), host_(options("ref")), device_(options("auto")) {
    for (int i = 0; i < kRequests; ++i) requests_.push_back({next_id_++, i, 0});
    canary_ = device_.slot(kUnusedSlot);
  }

  void step(int64_t index) {
    const std::vector<Piece> pieces = draw();
    StepExtras extras = draw_snapshot(pieces);
    const std::string what = "step " + std::to_string(index);
    const Status on_host = host_.run(pieces, extras);
    ASSERT_TRUE(on_host.ok()) << what << ": " << on_host.to_string();
    const Status on_device = device_.run(pieces, extras);
    ASSERT_TRUE(on_device.ok()) << what << ": " << on_device.to_string();
    std::vector<int32_t> accepted;
    for (const Piece& piece : pieces) {
      if (piece.row.kind == RowKind::kVerify) accepted.push_back(below(piece.row.tokens + 1) - 1);
    }
    if (!accepted.empty()) {
      ASSERT_TRUE(host_.commit(accepted).ok()) << what;
      device_.accept(accepted);
      ASSERT_TRUE(device_.commit().ok()) << what;
    }
    advance(pieces, accepted);
    if (index % 16 == 0) compare(pieces, extras, what);
  }

  std::string flags() const { return device_.flags(); }
  void expect_canary() const {
    expect_same(device_.slot(kUnusedSlot), canary_, "the slot that nobody has");
  }
  double worst() const { return worst_; }

 private:
  static EngineOptions options(const char* kernel) {
    EngineOptions made;
    made.io = DType::kF32;
    made.kernel = kernel;
    made.threads = 1;
    return made;
  }
  int32_t below(int64_t n) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(0, n - 1)(random_));
  }

  std::vector<Piece> draw() {
    std::vector<Piece> extend, decode, verify;
    for (Request& request : requests_) {
      if (request.tokens > longest_) request = {next_id_++, request.slot, 0};
      const int32_t kind = request.tokens == 0 ? 0 : below(8);
      Row row;
      row.slot = request.slot;
      row.start = request.tokens;
      if (kind == 0) {
        row.kind = RowKind::kExtend;
        row.tokens = 1 + below(40);
        extend.push_back({request.id, row, {}});
      } else if (kind < 4) {
        row.kind = RowKind::kDecode;
        row.tokens = 1;
        decode.push_back({request.id, row, {}});
      } else if (kind < 7) {
        row.kind = RowKind::kVerify;
        row.tokens = 1 + below(5);
        verify.push_back({request.id, row, {}});
      }
    }
    extend.insert(extend.end(), decode.begin(), decode.end());
    extend.insert(extend.end(), verify.begin(), verify.end());
    return extend;
  }

  StepExtras draw_snapshot(const std::vector<Piece>& pieces) {
    StepExtras extras;
    if (pieces.empty() || below(4) != 0) return extras;
    const int32_t n = below(static_cast<int64_t>(pieces.size()));
    const Row& row = pieces[static_cast<size_t>(n)].row;
    if (row.kind == RowKind::kVerify) return extras;
    extras.snapshots.push_back({n, row.start + 1 + below(row.tokens), kSnapshotSlot});
    return extras;
  }

  void advance(const std::vector<Piece>& pieces, const std::vector<int32_t>& accepted) {
    size_t verified = 0;
    for (const Piece& piece : pieces) {
      Request& request = requests_[static_cast<size_t>(piece.row.slot)];
      const bool verify = piece.row.kind == RowKind::kVerify;
      request.tokens += verify ? accepted[verified++] + 1 : piece.row.tokens;
    }
  }

  void expect_close(const std::vector<HostTensor>& got, const std::vector<HostTensor>& want,
                    double limit, const std::string& what) {
    for (size_t i = 0; i < got.size(); ++i) {
      if (want[i].num_elements() == 0) continue;
      const testing::Difference difference = testing::compare(got[i], want[i]);
      worst_ = std::max(worst_, difference.rel);
      EXPECT_LE(difference.rel, limit) << what << ", tensor " << i << ": " << difference.text();
    }
  }

  void compare(const std::vector<Piece>& pieces, const StepExtras& extras,
               const std::string& what) {
    const int64_t tokens = host_.metadata().token_capacity();
    expect_close(device_.outputs(0, tokens), host_.outputs(0, tokens), kOutputLimit, what);
    for (const Piece& piece : pieces) {
      expect_close(device_.slot(piece.row.slot), host_.slot(piece.row.slot), kStateLimit,
                   what + ", slot " + std::to_string(piece.row.slot));
    }
    if (extras.snapshots.empty()) return;
    expect_close(device_.slot(kSnapshotSlot), host_.slot(kSnapshotSlot), kStateLimit,
                 what + ", snapshot");
  }

  std::mt19937_64 random_;
  int64_t longest_;
  std::vector<HostTensor> canary_;
  Engine host_;
  DeviceEngine device_;
  std::vector<Request> requests_;
  int next_id_ = 1;
  double worst_ = 0.0;
};

// Bytes that this process holds, on the device and on the host.
struct Held {
  int64_t device = 0;
  int64_t host = 0;
};

Held held_now() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return {static_cast<int64_t>(total - free), resident * 4096};
}

// What allocators may keep for later; a leak of 100 bytes a step would be more.
constexpr int64_t kHostSlack = int64_t{16} << 20;
constexpr int64_t kDeviceSlack = int64_t{8} << 20;  // kernels are loaded when they first run

TEST(SoakGpu, RandomStepsStayWithinTolerance) {
  const int64_t steps = from_environment("LINESTATE_SOAK_STEPS", 2000);
  const auto seed = static_cast<uint64_t>(from_environment("LINESTATE_SOAK_SEED", 1));
  const int64_t threads = std::max(1u, std::thread::hardware_concurrency());
  const int64_t count = std::max<int64_t>(
      1, from_environment("LINESTATE_SOAK_POOLS", std::min<int64_t>(12, threads)));
  std::vector<std::unique_ptr<Soak>> pools;
  for (int64_t i = 0; i < count; ++i) {
    pools.push_back(std::make_unique<Soak>(seed + static_cast<uint64_t>(i),
                                           i % 4 == 3 ? kLongestLate : kLongest));
  }
  const int64_t each = (steps + count - 1) / count;
  const int64_t warm = std::min<int64_t>(each / 4, 1000);
  std::atomic<bool> failed = false;
  Held before;
  std::barrier warmed(count, [&]() noexcept { before = held_now(); });
  std::vector<std::thread> hosts;
  for (const std::unique_ptr<Soak>& pool : pools) {
    hosts.emplace_back([&, life = pool.get()] {
      for (int64_t i = 0; i < each; ++i) {
        if (i == warm) warmed.arrive_and_wait();
        if (failed.load()) continue;
        life->step(i);
        if (i % 64 == 0 && ::testing::Test::HasFailure()) failed = true;
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  double worst = 0.0;
  for (const std::unique_ptr<Soak>& pool : pools) {
    EXPECT_EQ(pool->flags(), "");
    pool->expect_canary();
    worst = std::max(worst, pool->worst());
  }
  const Held after = held_now();
  EXPECT_LE(after.device, before.device + kDeviceSlack);
  EXPECT_LE(after.host, before.host + kHostSlack);
  std::printf("%lld steps of %lld pools, worst relative error %.3e, host memory %+lld KiB\n",
              static_cast<long long>(each * count), static_cast<long long>(count), worst,
              static_cast<long long>((after.host - before.host) / 1024));
}

}  // namespace
}  // namespace linestate
