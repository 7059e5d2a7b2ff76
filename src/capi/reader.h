// Reads C arguments into C++ ones. A Reader keeps the first error, so that a struct is read member
// by member in plain lines; it also owns the arrays behind the spans of what it read.
#pragma once

#include <utility>
#include <vector>

#include "base/message.h"
#include "capi/fence.h"
#include "linestate/c_api.h"
#include "linestate/linestate.h"

namespace linestate::capi {

/// kInvalidArgument naming the tensor: rank, dtype or device out of range, a negative or
/// overflowing size or stride, a null or misaligned pointer.
Status to_view(const char* name, const ls_tensor& in, TensorView* out);
ls_tensor to_c(const ConstTensorView& view);

class Reader {
 public:
  const Status& status() const { return status_; }

  void require_ok(Status status) {
    if (status_.ok() && !status.ok()) status_ = std::move(status);
  }

  template <typename View>
  void tensor(const char* name, const ls_tensor& in, View* out) {
    TensorView view;
    require_ok(to_view(name, in, &view));
    if (status_.ok()) *out = view;
  }

  /// A required struct behind a pointer; all zero after an error.
  template <typename T>
  T sized(const char* name, const T* in) {
    T copy{};
    require_ok(load(name, in, &copy));
    return copy;
  }

  /// Values 0 to `last`.
  template <typename Enum>
  void choice(const char* name, int32_t value, Enum last, Enum* out) {
    if (value < 0 || value > static_cast<int32_t>(last)) {
      require_ok(
          invalid_argument(name, ": expected 0 to ", static_cast<int32_t>(last), ", got ", value));
    } else {
      *out = static_cast<Enum>(value);
    }
  }

  template <typename View>
  void tensors(const char* name, const ls_tensor* in, size_t count, std::vector<View>* out) {
    if (count > 0) require_ok(require({{name, in}}));
    for (size_t i = 0; i < count && status_.ok(); ++i) {
      tensor(name, in[i], &out->emplace_back());
    }
  }

  std::vector<TensorView> planes;
  std::vector<ConstTensorView> sources;
  std::vector<ReplayFoldLayer> layers;

 private:
  Status status_;
};

Result<Device> to_device(int32_t type, int32_t index);
void read(Reader& reader, const ls_context* in, ExecContext* out);
void read(Reader& reader, const ls_rows* in, RowTensors* out);
/// Null = none.
void read(Reader& reader, const ls_snapshot_plan* in, SnapshotPlan* out);
void read(Reader& reader, const ls_kda_record* in, KdaRecord* out);
void read(Reader& reader, const ls_lightning_record* in, LightningRecord* out);

inline float or_default(float value, float fallback) { return value == 0.0f ? fallback : value; }
inline int64_t or_default(int64_t value, int64_t fallback) { return value == 0 ? fallback : value; }

}  // namespace linestate::capi
