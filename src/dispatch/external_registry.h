// Definitions behind external_kernels.h, instantiated once per Params type by the generated file.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "base/message.h"
#include "dispatch/external_kernels.h"

namespace linestate {

/// One registry a Params type; the base is what code without the type needs.
class ExternalRegistryBase {
 public:
  virtual ~ExternalRegistryBase() = default;
  virtual bool remove(std::string_view op, std::string_view kernel) = 0;
  virtual void append_infos(std::vector<KernelInfo>& infos) const = 0;
};

/// Guards every registry; registration is rare, and a call takes it only when something is
/// registered.
std::mutex& external_mutex();
std::atomic<int64_t>& external_count();
/// Remembers the registry for remove and append_infos. The mutex is held.
void know_external_registry(ExternalRegistryBase* registry);

template <typename Params>
class ExternalRegistry final : public ExternalRegistryBase {
 public:
  using Rows = ExternalRows<Params>;

  static ExternalRegistry& get() {
    static ExternalRegistry registry;
    return registry;
  }

  Status add(std::string_view op, const ExternalKernel<Params>& kernel) {
    std::vector<std::string> taken;
    if (!builtin_kernel_names(op, typeid(Params), taken)) {
      return Status(StatusCode::kNotFound,
                    concat("op: expected an operator of these Params, got ", op));
    }
    return insert(op, kernel, std::move(taken));
  }

  /// add() for a row that takes the place of a built-in one of its name; only tests do that.
  Status shadow(std::string_view op, const ExternalKernel<Params>& kernel) {
    return insert(op, kernel, {});
  }

 private:
  Status insert(std::string_view op, const ExternalKernel<Params>& kernel,
                std::vector<std::string> taken) {
    if (kernel.name.empty() || kernel.name == kAutoKernel) {
      return invalid_argument("kernel.name: expected a name of its own, got \"", kernel.name, '"');
    }
    if (kernel.run == nullptr) return invalid_argument("kernel.run: expected a function, got null");
    const std::lock_guard<std::mutex> lock(external_mutex());
    Rows rows;
    rows.push_back(std::make_shared<const ExternalKernel<Params>>(kernel));
    const auto old = rows_.find(op);
    if (old != rows_.end()) {
      for (const auto& row : *old->second) {
        taken.push_back(row->name);
        rows.push_back(row);
      }
    }
    if (std::find(taken.begin(), taken.end(), kernel.name) != taken.end()) {
      return invalid_argument("kernel.name: expected a name of its own, ", op, " already has ",
                              kernel.name);
    }
    // Counters are keyed by the row's address, so a row's memory is never given back.
    kept_.push_back(rows.front());
    rows_[std::string(op)] = std::make_shared<const Rows>(std::move(rows));
    external_count().fetch_add(1, std::memory_order_release);
    know_external_registry(this);
    return {};
  }

 public:
  std::shared_ptr<const Rows> rows(std::string_view op) const {
    const std::lock_guard<std::mutex> lock(external_mutex());
    const auto found = rows_.find(op);
    return found == rows_.end() ? nullptr : found->second;
  }

  bool remove(std::string_view op, std::string_view kernel) override {
    const auto found = rows_.find(op);
    if (found == rows_.end()) return false;
    Rows left;
    for (const auto& row : *found->second) {
      if (row->name != kernel) left.push_back(row);
    }
    if (left.size() == found->second->size()) return false;
    if (left.empty()) {
      rows_.erase(found);
    } else {
      found->second = std::make_shared<const Rows>(std::move(left));
    }
    external_count().fetch_sub(1, std::memory_order_release);
    return true;
  }

  void append_infos(std::vector<KernelInfo>& infos) const override {
    for (const auto& [op, rows] : rows_) {
      for (const auto& row : *rows) {
        infos.push_back({op, row->name, device_type_name(row->device), row->summary});
      }
    }
  }

 private:
  std::map<std::string, std::shared_ptr<const Rows>, std::less<>> rows_;
  std::vector<std::shared_ptr<const ExternalKernel<Params>>> kept_;
};

template <typename Params>
std::shared_ptr<const ExternalRows<Params>> external_rows(std::string_view op) {
  if (external_count().load(std::memory_order_acquire) == 0) return nullptr;
  return ExternalRegistry<Params>::get().rows(op);
}

template <typename Params>
Status register_kernel(std::string_view op, const ExternalKernel<Params>& kernel) {
  return ExternalRegistry<Params>::get().add(op, kernel);
}

}  // namespace linestate
