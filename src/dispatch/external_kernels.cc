#include "dispatch/external_kernels.h"

#include <cstdlib>
#include <map>

#include "dispatch/external_registry.h"

namespace linestate {
namespace {

std::vector<ExternalRegistryBase*>& registries() {
  static std::vector<ExternalRegistryBase*> list;
  return list;
}

// "kda_decode=ref,*=cpu" as op -> kernel. Entries without '=' are ignored by design: a misspelt
// variable must not stop a server, and `linestate info` prints what was understood.
std::map<std::string, std::string, std::less<>> parse_environment() {
  std::map<std::string, std::string, std::less<>> names;
  const char* text = std::getenv("LINESTATE_KERNELS");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == entry.size()) continue;
    names[std::string(entry.substr(0, equals))] = std::string(entry.substr(equals + 1));
  }
  return names;
}

}  // namespace

std::mutex& external_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::atomic<int64_t>& external_count() {
  static std::atomic<int64_t> count{0};
  return count;
}

void know_external_registry(ExternalRegistryBase* registry) {
  auto& list = registries();
  if (std::find(list.begin(), list.end(), registry) == list.end()) list.push_back(registry);
}

Status unregister_kernel(std::string_view op, std::string_view kernel) try {
  const std::lock_guard<std::mutex> lock(external_mutex());
  for (ExternalRegistryBase* registry : registries()) {
    if (registry->remove(op, kernel)) return {};
  }
  return Status(StatusCode::kNotFound,
                concat("kernel: expected a registered one, got ", kernel, " of ", op));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void append_external_kernel_infos(std::vector<KernelInfo>& infos) {
  const std::lock_guard<std::mutex> lock(external_mutex());
  for (const ExternalRegistryBase* registry : registries()) registry->append_infos(infos);
}

std::string_view kernel_from_environment(std::string_view op) {
  static const auto names = parse_environment();
  if (names.empty()) return {};
  auto found = names.find(op);
  if (found == names.end()) found = names.find("*");
  return found == names.end() ? std::string_view() : std::string_view(found->second);
}

}  // namespace linestate
