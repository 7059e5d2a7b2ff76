// A third party's kernels: a device of its own, a better row that refuses, and what is counted.
#include "linestate/kernel_registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "linestate/ops/kda.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;

// One decode call over two rows; every view is on `device` although the memory is the host's.
struct Problem {
  HostTensor q{DType::kF32, {2, 1, 16}}, k{DType::kF32, {2, 1, 16}}, v{DType::kF32, {2, 1, 16}};
  HostTensor gate{DType::kF32, {2, 1, 16}}, beta{DType::kF32, {2, 1}};
  HostTensor A_log{DType::kF32, {1}}, dt_bias{DType::kF32, {1, 16}};
  HostTensor state{DType::kF32, {3, 1, 16, 16}}, out{DType::kF32, {2, 1, 16}};
  HostTensor slot = testing::i32_tensor({2, 0});
  HostTensor scratch{DType::kU8, {1 << 16}};
  ExecContext context;

  explicit Problem(Device device = {}) {
    context.device = device;
    context.num_threads = 1;
    context.workspace = {scratch.data(), scratch.bytes()};
    uint64_t seed = 1;
    for (HostTensor* tensor : {&q, &k, &v, &gate, &beta, &state}) {
      testing::fill_normal(*tensor, seed++);
    }
  }
  KdaParams params() {
    KdaParams p;
    p.rows.slot = slot;
    p.q = q;
    p.k = k;
    p.v = v;
    p.gate = gate;
    p.beta = beta;
    p.A_log = A_log;
    p.dt_bias = dt_bias;
    p.state = state;
    p.out = out;
    for (ConstTensorView* view :
         {&p.rows.slot, &p.q, &p.k, &p.v, &p.gate, &p.beta, &p.A_log, &p.dt_bias}) {
      view->device = context.device;
    }
    p.state.device = p.out.device = context.device;
    return p;
  }
};

// The foreign kernel: runs the library's own CPU row behind the device's back, as a stand-in for
// a vendor's code, and counts its calls.
Status foreign_run(const KdaParams& params, const ExecContext& context, void* user) {
  ++*static_cast<int*>(user);
  KdaParams host = params;
  for (ConstTensorView* view : {&host.rows.slot, &host.q, &host.k, &host.v, &host.gate, &host.beta,
                                &host.A_log, &host.dt_bias}) {
    view->device = {};
  }
  host.state.device = host.out.device = {};
  ExecContext host_context = context;
  host_context.device = {};
  return kda_decode(host, host_context, "cpu");
}

ExternalKernel<KdaParams> foreign_kernel(int& calls) {
  ExternalKernel<KdaParams> kernel;
  kernel.name = "npu";
  kernel.summary = "stands for a vendor's kernel";
  kernel.workspace_bytes = [](const KdaParams&, const ExecContext&, void*) -> int64_t {
    return 4096;
  };
  kernel.run = foreign_run;
  kernel.user = &calls;
  return kernel;
}

KernelUse use_of(const std::string& op, const std::string& kernel) {
  for (const KernelUse& use : kernel_uses()) {
    if (use.op == op && use.kernel == kernel) return use;
  }
  return {};
}

TEST(KernelRegistry, AForeignDeviceGetsItsKernelAndOnlyThen) {
  Problem there({DeviceType::kExternal, 3});
  Problem here;
  const Status before = kda_decode(there.params(), there.context);
  EXPECT_EQ(before.code(), StatusCode::kUnsupported);
  EXPECT_NE(before.message().find("cpu: runs on cpu, not on external:3"), std::string::npos)
      << before.message();

  int calls = 0;
  ASSERT_TRUE(register_kernel<KdaParams>("kda_decode", foreign_kernel(calls)).ok());
  ASSERT_TRUE(kda_decode(there.params(), there.context).ok());
  EXPECT_EQ(calls, 1);
  ASSERT_TRUE(kda_decode(here.params(), here.context).ok());
  EXPECT_EQ(calls, 1) << "the host's call must not reach the foreign kernel";
  EXPECT_EQ(testing::bit_difference(there.out, here.out), "");
  EXPECT_EQ(testing::bit_difference(there.state, here.state), "");

  const KernelChoice choice = explain_kda_decode(there.params(), there.context);
  EXPECT_EQ(choice.kernel, "npu");
  EXPECT_EQ(choice.workspace_bytes, 4096);
  const auto infos = list_kernels();
  EXPECT_TRUE(std::any_of(infos.begin(), infos.end(), [](const KernelInfo& info) {
    return info.op == "kda_decode" && info.kernel == "npu" && info.device == "external";
  }));
  ASSERT_TRUE(unregister_kernel("kda_decode", "npu").ok());
  EXPECT_EQ(kda_decode(there.params(), there.context).code(), StatusCode::kUnsupported);
}

TEST(KernelRegistry, RefusesBadRegistrationsByName) {
  int calls = 0;
  auto message = [&](const char* op, auto&& change) {
    ExternalKernel<KdaParams> kernel = foreign_kernel(calls);
    change(kernel);
    return register_kernel<KdaParams>(op, kernel).to_string();
  };
  using Kernel = ExternalKernel<KdaParams>;
  EXPECT_EQ(message("kda_dekode", [](Kernel&) {}),
            "not_found: op: expected an operator of these Params, got kda_dekode");
  EXPECT_EQ(message("causal_conv1d_update", [](Kernel&) {}).substr(0, 9), "not_found");
  EXPECT_NE(message("kda_decode", [](Kernel& k) { k.name = "cpu"; }).find("already has cpu"),
            std::string::npos);
  EXPECT_NE(message("kda_decode", [](Kernel& k) { k.name = "auto"; }).find("kernel.name"),
            std::string::npos);
  EXPECT_NE(message("kda_decode", [](Kernel& k) { k.run = nullptr; }).find("kernel.run"),
            std::string::npos);
  EXPECT_EQ(unregister_kernel("kda_decode", "npu").code(), StatusCode::kNotFound);
}

// A better row on the same device that refuses makes the built-in row a fallback.
TEST(KernelRegistry, FallbacksAreCountedLoggedOnceAndAnErrorWhenStrict) {
  static std::vector<std::string> log;
  log.clear();
  set_log_callback([](const char* text, void*) { log.emplace_back(text); }, nullptr);
  reset_kernel_uses();
  int calls = 0;
  ExternalKernel<KdaParams> fast = foreign_kernel(calls);
  fast.name = "fast";
  fast.device = DeviceType::kCpu;
  fast.refuse = [](const KdaParams&, const ExecContext&, void*) -> std::string {
    return "K: expected 128, got 16";
  };
  ASSERT_TRUE(register_kernel<KdaParams>("kda_decode", fast).ok());

  Problem problem;
  ASSERT_TRUE(kda_decode(problem.params(), problem.context).ok());
  ASSERT_TRUE(kda_decode(problem.params(), problem.context).ok());
  ASSERT_TRUE(kda_decode(problem.params(), problem.context, "cpu").ok());  // asked for: no fallback
  const KernelUse use = use_of("kda_decode", "cpu");
  EXPECT_EQ(use.calls, 3);
  EXPECT_EQ(use.fallbacks, 2);
  EXPECT_EQ(use.last_reason, "fast refused: K: expected 128, got 16");
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0], "kda_decode: cpu runs as a fallback, fast refused: K: expected 128, got 16");

  const HostTensor state = problem.state.clone();
  problem.context.strict = true;
  const Status strict = kda_decode(problem.params(), problem.context);
  EXPECT_EQ(strict.code(), StatusCode::kUnsupported);
  EXPECT_NE(strict.message().find("only the fallback cpu fits; fast refused"), std::string::npos);
  EXPECT_EQ(testing::bit_difference(problem.state, state), "") << "nothing ran";
  EXPECT_TRUE(kda_decode(problem.params(), problem.context, "cpu").ok());

  ASSERT_TRUE(unregister_kernel("kda_decode", "fast").ok());
  set_log_callback(nullptr, nullptr);
}

TEST(KernelRegistry, RegistrationWhileOthersCall) {
  std::thread caller([] {
    Problem problem;
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(kda_decode(problem.params(), problem.context, "cpu").ok());
    }
  });
  int calls = 0;
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(register_kernel<KdaParams>("kda_decode", foreign_kernel(calls)).ok());
    ASSERT_TRUE(unregister_kernel("kda_decode", "npu").ok());
  }
  caller.join();
}

}  // namespace
}  // namespace linestate
