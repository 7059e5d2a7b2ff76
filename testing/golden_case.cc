#include "testing/golden_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "testing/compare.h"

namespace linestate::testing {
namespace {

Json parse_meta(const Safetensors& file, std::string_view key) {
  return require(parse_json(require(file.meta(key))));
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out.append(", ");
    out.append(shape[i] == kAnyGoldenSize ? "any" : std::to_string(shape[i]));
  }
  return out.append("]");
}

bool contains(const std::vector<int64_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

GoldenRows GoldenRows::prefill(std::vector<int64_t> slots, std::vector<int64_t> start,
                               std::vector<int64_t> cu) {
  if (start.size() != slots.size() || cu.size() != slots.size() + 1 ||
      !std::is_sorted(cu.begin(), cu.end()) || cu.front() != 0) {
    throw GoldenError{Status(StatusCode::kDataLoss, "slots, starts and offsets do not fit")};
  }
  GoldenRows rows;
  rows.slot_tensor_ = i64_tensor(slots);
  rows.start_tensor_ = i64_tensor(start);
  rows.cu_tensor_ = i64_tensor(cu);
  rows.slots_ = std::move(slots);
  rows.start_ = std::move(start);
  rows.cu_ = std::move(cu);
  return rows;
}

GoldenRows GoldenRows::decode(std::vector<int64_t> slots) {
  const size_t n = slots.size();
  std::vector<int64_t> cu(n + 1);
  for (size_t i = 0; i <= n; ++i) cu[i] = static_cast<int64_t>(i);
  return prefill(std::move(slots), std::vector<int64_t>(n, kResumedStart), std::move(cu));
}

RowTensors GoldenRows::tensors() const {
  RowTensors rows;
  rows.slot = slot_tensor_.view();
  rows.query_start_loc = cu_tensor_.view();
  rows.start = start_tensor_.view();
  return rows;
}

std::vector<int64_t> GoldenRows::live_slots() const {
  std::vector<int64_t> out;
  for (int64_t slot : slots_) {
    if (slot >= 0) out.push_back(slot);
  }
  return out;
}

std::vector<int64_t> GoldenRows::fresh_slots() const {
  std::vector<int64_t> out;
  for (size_t n = 0; n < slots_.size(); ++n) {
    if (slots_[n] >= 0 && start_[n] == 0) out.push_back(slots_[n]);
  }
  return out;
}

std::vector<int64_t> GoldenRows::tokens(bool live, int64_t steps) const {
  std::vector<int64_t> out;
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t n = 0; n < slots_.size(); ++n) {
      if ((slots_[n] >= 0) != live) continue;
      for (int64_t t = cu_[n]; t < cu_[n + 1]; ++t) out.push_back(step * num_tokens() + t);
    }
  }
  return out;
}

GoldenCase::GoldenCase(const Safetensors& file, const GoldenOptions& options, GoldenReport& report)
    : file_(file),
      options_(options),
      report_(report),
      params_(parse_meta(file, "params")),
      errors_(parse_meta(file, "errors")) {}

const HostTensor& GoldenCase::tensor(std::string_view name,
                                     std::initializer_list<int64_t> shape) const {
  const HostTensor& found = *require(file_.tensor(name));
  bool same = found.shape().size() == shape.size();
  size_t dim = 0;
  for (int64_t size : shape) {
    same = same && (size == kAnyGoldenSize || found.shape()[dim] == size);
    ++dim;
  }
  if (!same) {
    throw GoldenError{Status(StatusCode::kDataLoss, "tensor \"" + std::string(name) +
                                                        "\": expected " + shape_text(shape) +
                                                        ", got " + shape_text(found.shape()))};
  }
  return found;
}

HostTensor GoldenCase::pool(std::string_view name, std::initializer_list<int64_t> shape) const {
  const HostTensor& stored = tensor(name, shape);
  if (params_.find("f32_tensors_stored_as_bf16") != nullptr) {
    for (const Json& item : *require(params_.get_array("f32_tensors_stored_as_bf16"))) {
      const auto* widened = std::get_if<std::string>(&item.value);
      if (widened != nullptr && *widened == name) return cast_of(stored, DType::kF32);
    }
  }
  return stored.clone();
}

std::vector<int64_t> GoldenCase::ints(std::string_view name) const {
  const HostTensor& values = tensor(name, {kAnyGoldenSize});
  std::vector<int64_t> out;
  for (int64_t i = 0; i < values.num_elements(); ++i) {
    out.push_back(static_cast<int64_t>(values.at(i)));
  }
  return out;
}

std::optional<double> GoldenCase::sglang_error(std::string_view name) const {
  const Json* entry = errors_.find(name);
  if (entry == nullptr) return std::nullopt;
  return require(entry->get_double("rel"));
}

void GoldenCase::judge(const std::string& name, const ConstTensorView& actual,
                       const ConstTensorView& expected, std::string_view sglang, double floor,
                       double ceiling, const std::string& note) {
  const Difference difference = compare(actual, expected);
  GoldenLine line;
  line.tensor = name;
  line.rel = difference.rel;
  line.max_abs = difference.max_abs;
  line.sglang = sglang_error(sglang);
  line.limit = std::min(std::max(1.1 * line.sglang.value_or(0.0), floor), ceiling);
  const bool some = actual.num_elements() > 0;
  const bool pass = some && difference.finite && difference.rel <= line.limit;
  line.verdict = pass ? GoldenVerdict::kPass : GoldenVerdict::kFail;
  line.note = note;
  if (!some) line.note = "nothing to compare";
  if (!difference.finite) line.note.append(note.empty() ? "" : "; ").append("not finite");
  report_.lines.push_back(std::move(line));
}

void GoldenCase::judge_output(const std::string& name, const ConstTensorView& actual,
                              const ConstTensorView& expected, std::string_view sglang,
                              double ceiling, const std::string& note) {
  const double floor =
      actual.dtype == DType::kF32 ? 1e-6 : 1.05 * rounding_error(expected, actual.dtype);
  judge(name, actual, expected, sglang, floor, ceiling, note);
}

void GoldenCase::judge_state(const std::string& name, const ConstTensorView& actual,
                             const ConstTensorView& expected, std::string_view sglang,
                             double ceiling, const std::string& note) {
  judge(name, actual, expected, sglang, 5e-7, ceiling, note);
}

void GoldenCase::judge_bits(const std::string& name, const std::string& difference) {
  GoldenLine line;
  line.tensor = name;
  line.exact = true;
  line.note = difference;
  line.verdict = difference.empty() ? GoldenVerdict::kPass : GoldenVerdict::kFail;
  report_.lines.push_back(std::move(line));
}

void GoldenCase::judge_exact(const std::string& name, const ConstTensorView& actual,
                             const ConstTensorView& expected) {
  const bool some = actual.num_elements() > 0;
  judge_bits(name, some ? bit_difference(actual, expected) : "nothing to compare");
}

void GoldenCase::judge_padding(const std::string& name, const ConstTensorView& out,
                               const std::vector<int64_t>& padding_tokens) {
  if (!padding_tokens.empty()) judge_bits(name, nonzero(take(out, padding_tokens)));
}

void GoldenCase::judge_untouched(const std::string& name, const ConstTensorView& after,
                                 const ConstTensorView& before, const std::vector<int64_t>& live) {
  std::vector<int64_t> others;
  for (int64_t slot = 0; slot < before.shape[0]; ++slot) {
    if (!contains(live, slot)) others.push_back(slot);
  }
  if (!others.empty()) judge_exact(name, take(after, others), take(before, others));
}

void GoldenCase::inform(const std::string& name, const ConstTensorView& actual,
                        const ConstTensorView& expected, const std::string& note) {
  const Difference difference = compare(actual, expected);
  GoldenLine line;
  line.tensor = name;
  line.rel = difference.rel;
  line.max_abs = difference.max_abs;
  line.note = note;
  report_.lines.push_back(std::move(line));
}

HostTensor take(const ConstTensorView& view, const std::vector<int64_t>& indices) {
  std::vector<int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
  shape[0] = static_cast<int64_t>(indices.size());
  HostTensor out(view.dtype, shape);
  auto* to = static_cast<char*>(out.data());
  for (int64_t index : indices) {
    if (index < 0 || index >= view.shape[0]) {
      throw GoldenError{Status(StatusCode::kDataLoss, "index " + std::to_string(index) + " of " +
                                                          std::to_string(view.shape[0]))};
    }
    const HostTensor row = copy_of(view.slice(0, index, index + 1));
    std::memcpy(to, row.data(), static_cast<size_t>(row.bytes()));
    to += row.bytes();
  }
  return out;
}

ConstTensorView view_as(const HostTensor& tensor, std::initializer_list<int64_t> shape) {
  return ConstTensorView(tensor.data(), tensor.dtype(), shape);
}

}  // namespace linestate::testing
