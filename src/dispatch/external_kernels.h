// Rows registered from outside the library, per operator.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

#include "linestate/kernel_info.h"
#include "linestate/kernel_registry.h"

namespace linestate {

template <typename Params>
using ExternalRows = std::vector<std::shared_ptr<const ExternalKernel<Params>>>;

/// Rows of `op`, latest first; null when there are none. Costs one atomic load while nothing is
/// registered anywhere.
template <typename Params>
std::shared_ptr<const ExternalRows<Params>> external_rows(std::string_view op);

/// Kernel that LINESTATE_KERNELS names for `op`; empty when it names none.
std::string_view kernel_from_environment(std::string_view op);

/// The names of the built-in rows of `op`. False when there is no such operator, or its Params are
/// of another type. Written by CMake beside list_kernels().
bool builtin_kernel_names(std::string_view op, std::type_index params,
                          std::vector<std::string>& names);

/// The external rows as data, for list_kernels().
void append_external_kernel_infos(std::vector<KernelInfo>& infos);

}  // namespace linestate
