// A long random life of a pool on a GPU: prefills, decodes, verified drafts and snapshots through
// both backends, every step's outputs and states of the step's rows against `ref` on the same
// batches. LINESTATE_SOAK_STEPS sets the number of steps (2000), LINESTATE_SOAK_SEED the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
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
constexpr int64_t kLongest = 600;      // tokens, then the request starts over
constexpr double kOutputLimit = 5e-5;  // f32 in and out, long horizon
constexpr double kStateLimit = 5e-5;

struct Request {
  int id = 0;
  int32_t slot = 0;
  int64_t tokens = 0;
};

class Soak {
 public:
  explicit Soak(uint64_t seed) : random_(seed), host_(options("ref")), device_(options("auto")) {
    for (int i = 0; i < kRequests; ++i) requests_.push_back({next_id_++, i, 0});
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
      if (request.tokens > kLongest) request = {next_id_++, request.slot, 0};
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
  Engine host_;
  DeviceEngine device_;
  std::vector<Request> requests_;
  int next_id_ = 1;
  double worst_ = 0.0;
};

TEST(SoakGpu, RandomStepsStayWithinTolerance) {
  const int64_t steps = from_environment("LINESTATE_SOAK_STEPS", 2000);
  Soak soak(static_cast<uint64_t>(from_environment("LINESTATE_SOAK_SEED", 1)));
  for (int64_t i = 0; i < steps; ++i) {
    soak.step(i);
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_EQ(soak.flags(), "");
  std::printf("%lld steps, worst relative error %.3e\n", static_cast<long long>(steps),
              soak.worst());
}

}  // namespace
}  // namespace linestate
