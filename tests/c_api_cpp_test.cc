// The C headers as C++, against the C++ ones: equal values, the log callback, and the fence.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "linestate/c_api.h"
#include "linestate/linestate.h"
#include "linestate/state/slot_pack.h"

namespace linestate::testing {
namespace {

template <typename C, typename Cpp>
constexpr bool same(C c, Cpp cpp) {
  return static_cast<int64_t>(c) == static_cast<int64_t>(cpp);
}

static_assert(same(LS_DEVICE, StatusCode::kDevice) && same(LS_INTERNAL, StatusCode::kInternal));
static_assert(same(LS_CANCELLED, StatusCode::kCancelled) && same(LS_IO, StatusCode::kIo));
static_assert(same(LS_RESOURCE_EXHAUSTED, StatusCode::kResourceExhausted));
static_assert(same(LS_FAILED_PRECONDITION, StatusCode::kFailedPrecondition));
static_assert(same(LS_NOT_FOUND, StatusCode::kNotFound));
static_assert(same(LS_DATA_LOSS, StatusCode::kDataLoss));
static_assert(same(LS_UNSUPPORTED, StatusCode::kUnsupported));
static_assert(same(LS_INVALID_ARGUMENT, StatusCode::kInvalidArgument));
static_assert(same(LS_F32, DType::kF32) && same(LS_BF16, DType::kBF16) &&
              same(LS_F16, DType::kF16));
static_assert(same(LS_F64, DType::kF64) && same(LS_I32, DType::kI32) && same(LS_I64, DType::kI64));
static_assert(same(LS_U8, DType::kU8) && same(LS_BOOL, DType::kBool));
static_assert(same(LS_EXTERNAL, DeviceType::kExternal) && same(LS_CUDA, DeviceType::kCuda));
static_assert(LS_MAX_RANK == kMaxRank && LS_PAD_SLOT == kPadSlot);
static_assert(LS_CHUNK_TOKENS == kChunkTokens);
static_assert(same(LS_ROW_DECODE, RowKind::kDecode) && same(LS_ROW_VERIFY, RowKind::kVerify));
static_assert(same(LS_ROW_PAD, RowKind::kPad) && same(LS_ROW_EXTEND, RowKind::kExtend));
static_assert(same(LS_GATE_BOUNDED, KdaGate::kBounded));
static_assert(same(LS_GATE_ACTIVATED, KdaGate::kActivated));
static_assert(same(LS_BETA_PROBABILITY, KdaBeta::kProbability));
static_assert(same(LS_ACTIVATION_SILU, Activation::kSilu));
static_assert(same(LS_SLOPE_PREVIOUS_LAYER, SlopeRule::kPreviousLayer));
static_assert(same(LS_LAYER_LIGHTNING, LayerKind::kLightning));
static_assert(same(LS_MINIMAX, LightningVariant::kMinimax));
static_assert(same(LS_LAYOUT_KV, StateLayout::kKV));
static_assert(same(LS_NO_ROOM, PrefixCache::InsertOutcome::kNoRoom));
static_assert(same(LS_DUPLICATE, PrefixCache::InsertOutcome::kDuplicate));
static_assert(same(LS_PACK_INT8, PackScheme::kInt8) && same(LS_PACK_F16, PackScheme::kF16));
static_assert(same(LS_FLAG_NON_FINITE, DeviceFlag::kNonFinite));
static_assert(same(LS_FLAG_STATE_OVERFLOW, DeviceFlag::kStateOverflow));
static_assert(sizeof(ls_device_status) == sizeof(DeviceStatus));
static_assert(sizeof(ls_tensor) == 104, "frozen within an ABI version");

class RmsSumSqCall {
 public:
  RmsSumSqCall() {
    const int64_t shape[] = {2, 16};
    const int64_t sums[] = {2, 1};
    LS_INIT(&context_);
    LS_INIT(&params_);
    params_.x = ls_dense(x_.data(), LS_F32, 2, shape);
    params_.sum_sq = ls_dense(sum_sq_.data(), LS_F32, 2, sums);
  }
  ls_context& context() { return context_; }
  ls_status run() { return ls_rms_sum_sq(&params_, &context_, nullptr); }

 private:
  std::vector<float> x_ = std::vector<float>(32, 1.0f);
  std::vector<float> sum_sq_ = std::vector<float>(2);
  ls_context context_;
  ls_rms_sum_sq_params params_;
};

// A kernel in front of the library's own that refuses, so that every call is a fallback; or throws.
class PickyKernel {
 public:
  explicit PickyKernel(bool throws = false) {
    ExternalKernel<RmsSumSqParams> kernel;
    kernel.name = "picky";
    kernel.device = DeviceType::kCpu;
    if (!throws) {
      kernel.refuse = [](const RmsSumSqParams&, const ExecContext&, void*) {
        return std::string("not today");
      };
    }
    kernel.run = [](const RmsSumSqParams&, const ExecContext&, void*) -> Status {
      throw std::runtime_error("thrown by a kernel");
    };
    EXPECT_TRUE(register_kernel("rms_sum_sq", kernel).ok());
  }
  ~PickyKernel() { EXPECT_TRUE(unregister_kernel("rms_sum_sq", "picky").ok()); }
};

TEST(CApi, LogCallbackHearsOfAFallbackOnce) {
  std::vector<std::string> messages;
  ls_set_log_callback(
      [](const char* message, void* user) {
        static_cast<std::vector<std::string>*>(user)->emplace_back(message);
      },
      &messages);
  const PickyKernel picky;
  RmsSumSqCall call;
  EXPECT_EQ(call.run(), LS_OK);
  EXPECT_EQ(call.run(), LS_OK);
  ls_set_log_callback(nullptr, nullptr);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("rms_sum_sq"), std::string::npos);
  EXPECT_NE(messages[0].find("not today"), std::string::npos);
  call.context().strict = 1;
  EXPECT_EQ(call.run(), LS_UNSUPPORTED);
  EXPECT_NE(std::string(ls_last_error()).find("not today"), std::string::npos);
}

TEST(CApi, NoExceptionPasses) {
  const PickyKernel picky(true);
  RmsSumSqCall call;
  EXPECT_EQ(call.run(), LS_INTERNAL);
  EXPECT_NE(std::string(ls_last_error()).find("thrown by a kernel"), std::string::npos);
}

TEST(CApi, MemoryThatDoesNotExistIsResourceExhausted) {
  ls_model* model = nullptr;
  ls_pool* pool = nullptr;
  ls_pool_spec spec;
  LS_INIT(&spec);
  ASSERT_EQ(ls_model_from_preset("kimi-linear", 0, 1, &model), LS_OK);
  spec.model = model;
  EXPECT_EQ(ls_pool_create(&spec, int64_t{1} << 30, LS_CPU, 0, &pool), LS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(pool, nullptr);
  EXPECT_NE(std::string(ls_last_error()), "");
  ls_model_destroy(model);
}

}  // namespace
}  // namespace linestate::testing
