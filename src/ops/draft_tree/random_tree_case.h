// Draft trees for tests, and what walking them must give, written apart from the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "testing/fill.h"

namespace linestate::testing {

/// Parents of a row's nodes: -1 for the root, an earlier node for the others. With `inert`, about
/// one node in five is named by nobody.
inline std::vector<int32_t> random_parents(Random& random, int64_t nodes, bool inert) {
  std::vector<int32_t> parents;
  for (int64_t i = 0; i < nodes; ++i) {
    const bool named = i > 0 && !(inert && random.uniform() < 0.2);
    parents.push_back(named ? static_cast<int32_t>(random.integer(0, i - 1)) : -1);
  }
  return parents;
}

/// Nodes from the root to `node`; empty when no path reaches it from the root.
inline std::vector<int64_t> path_to(const std::vector<int32_t>& parents, int64_t node) {
  std::vector<int64_t> path;
  for (int64_t at = node; at >= 0; at = parents[static_cast<size_t>(at)]) path.push_back(at);
  if (path.back() != 0) return {};
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace linestate::testing
