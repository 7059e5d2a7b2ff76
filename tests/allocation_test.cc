// Case P31 of docs/cases.md: operators and layers allocate nothing. The process's operator new is
// counted, so this is a program of its own.
#include <atomic>
#include <cstdlib>
#include <new>

#include "backends/backend_fixture.h"
#include "linestate/forward_batch.h"
#include "linestate/verify_records.h"
#include "tests/oracle_case.h"

namespace {
std::atomic<int64_t> allocations{0};
void* counted(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(size_t bytes) { return counted(bytes); }
void* operator new[](size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace linestate::testing {
namespace {

/// Allocations of one call with everything it needs at hand.
int64_t allocations_of(KdaPhase phase, KdaProblem& p, const std::string& kernel) {
  const KdaParams params = p.params();
  ExecContext context;
  context.num_threads = 1;
  const bool prefill = phase == KdaPhase::kPrefill;
  const Result<int64_t> bytes = prefill ? kda_prefill_workspace_bytes(params, context, kernel)
                                        : kda_decode_workspace_bytes(params, context, kernel);
  HostTensor workspace(DType::kU8, {*bytes});
  context.workspace = {workspace.data(), *bytes};
  const int64_t before = allocations;
  const Status status =
      prefill ? kda_prefill(params, context, kernel) : kda_decode(params, context, kernel);
  const int64_t after = allocations;
  EXPECT_TRUE(status.ok()) << status.to_string();
  return after - before;
}

// The first call, another batch size, another head count and the first padded batch.
TEST(Cases, P31_OperatorsAllocateNothing) {
  for (const std::string kernel : {"auto", "cpu", "ref"}) {
    for (const int64_t heads : {2, 6}) {
      KdaShape shape = small_kda_shape();
      shape.H = shape.HV = heads;
      for (const std::vector<KdaRow>& rows : {std::vector<KdaRow>{{1, 0, 64}},
                                              {{2, 64, 7}, {0, 0, 9}, {5, 1, 1}},
                                              {{3, 9, 4}, {-1, 0, 4}, {-1, 0, 4}}}) {
        KdaProblem p = make_kda_problem(shape, total_tokens(rows), 310);
        p.set_rows(rows);
        EXPECT_EQ(allocations_of(KdaPhase::kPrefill, p, kernel), 0) << kernel;
        KdaProblem d = make_kda_problem(shape, static_cast<int64_t>(rows.size()), 311);
        d.set_rows(rows);
        fill_constant(d.num_valid, 1.0);
        EXPECT_EQ(allocations_of(KdaPhase::kDecode, d, kernel), 0) << kernel;
      }
    }
  }
}

// What ForwardMetadata promises: after prepare() no layer allocates, whatever the batch.
void expect_layers_allocate_nothing(const std::vector<Piece>& pieces, const std::string& kernel) {
  TwoLayers layers;
  const StatePool pool =
      *StatePool::create(make_pool_spec(layers.model(), DType::kF32, DType::kBF16), 8);
  for (const TensorView& plane : pool.planes()) fill_constant(plane, 0.5);
  ForwardMetadata metadata = *ForwardMetadata::create(ForwardCapacity{16, 256, 4});
  const VerifyRecords records = *VerifyRecords::create(layers.model(), DType::kBF16, 64);
  KernelOptions names;
  names.base = kernel;
  const KdaBackend kda = *KdaBackend::create(layers.model(), names);
  const LightningBackend lightning = *LightningBackend::create(layers.model(), names);
  std::vector<Row> rows;
  for (const Piece& piece : pieces) rows.push_back(piece.row);
  ForwardBatch batch;
  batch.rows = rows;
  ExecContext context;
  context.num_threads = 1;
  ASSERT_TRUE(metadata.prepare(batch, pool, context).ok());
  layers.gather(pieces, metadata.token_capacity());
  const int64_t bytes =
      std::max(*kda.workspace_bytes(metadata.token_capacity(), pool, context),
               *lightning.workspace_bytes(metadata.token_capacity(), pool, context));
  HostTensor workspace(DType::kU8, {bytes});
  context.workspace = {workspace.data(), bytes};
  KdaLayerIo kda_io = layers.kda_io();
  kda_io.record = records.kda(0);
  kda_io.record_x = records.kda_x(0);
  LightningLayerIo lightning_io = layers.lightning_io();
  lightning_io.record = records.lightning(1);
  const int64_t before = allocations;
  const Status first = kda.forward(0, layers.kda_weights(), metadata, pool, kda_io, context);
  const Status second =
      lightning.forward(1, layers.lightning_weights(), metadata, pool, lightning_io, context);
  const int64_t after = allocations;
  EXPECT_TRUE(first.ok()) << first.to_string();
  EXPECT_TRUE(second.ok()) << second.to_string();
  EXPECT_EQ(after - before, 0) << kernel << ", " << pieces.size() << " rows";
}

TEST(Cases, P31_LayersAllocateNothingAfterPrepare) {
  for (const std::string kernel : {"auto", "cpu", "ref"}) {
    const Piece decode{1, {1, RowKind::kDecode, 4, 1, -1, -1}, {}};
    const Piece padded{2, {kPadSlot, RowKind::kDecode, 4, 1, 0, -1}, {}};
    const Piece verify{3, {2, RowKind::kVerify, 9, 4, 2, -1}, {}};
    const Piece extend{4, {3, RowKind::kExtend, 0, 70, -1, -1}, {}};
    expect_layers_allocate_nothing({decode}, kernel);
    expect_layers_allocate_nothing({decode, padded, padded}, kernel);
    expect_layers_allocate_nothing({extend, verify, decode}, kernel);
  }
}

}  // namespace
}  // namespace linestate::testing
