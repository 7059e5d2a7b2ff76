#include "cli/replay/drafts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "testing/fill.h"

namespace linestate::cli {
namespace {

using testing::hash64;

// Independent words for one (seed, request, position).
class Words {
 public:
  Words(uint64_t seed, int64_t request, int64_t position)
      : state_(hash64(hash64(hash64(seed + 0x647261667473ull) + static_cast<uint64_t>(request)) +
                      static_cast<uint64_t>(position))) {}
  uint64_t next() { return state_ = hash64(state_ + 1); }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>((next() >> 1) % static_cast<uint64_t>(bound));
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// Wide enough to branch often, narrow enough that a tree of a few nodes is more than its root.
constexpr int64_t kParentReach = 3;
constexpr int64_t kOneIn =
    8;  // inert nodes of a tree, and trees that are smaller than they might be

std::vector<int32_t> random_parents(int64_t nodes, Words& words) {
  std::vector<int32_t> parent{-1};
  std::vector<int32_t> live{0};
  for (int64_t node = 1; node < nodes; ++node) {
    if (node > 1 && words.below(kOneIn) == 0) {
      parent.push_back(-1);
      continue;
    }
    const auto choices = static_cast<int64_t>(live.size());
    const int64_t back = 1 + words.below(std::min(choices, kParentReach));
    parent.push_back(live[static_cast<size_t>(choices - back)]);
    live.push_back(static_cast<int32_t>(node));
  }
  return parent;
}

std::vector<int64_t> path_to(const std::vector<int32_t>& parent, int64_t node) {
  std::vector<int64_t> path;
  for (; node >= 0; node = parent[static_cast<size_t>(node)]) path.push_back(node);
  std::reverse(path.begin(), path.end());
  return path;
}

// A path to one of the deepest nodes.
std::vector<int64_t> longest_path(const Draft& draft, Words& words) {
  std::vector<int64_t> deepest;
  int64_t most = -1;
  for (int64_t node = 0; node < draft.valid; ++node) {
    if (draft.inert(node)) continue;
    const int64_t depth = draft.depth(node);
    if (depth > most) deepest.clear();
    most = std::max(most, depth);
    if (depth == most) deepest.push_back(node);
  }
  const int64_t pick = words.below(static_cast<int64_t>(deepest.size()));
  return path_to(draft.parent, deepest[static_cast<size_t>(pick)]);
}

}  // namespace

Result<Speculation> parse_speculation(std::string_view name) {
  if (name == "off") return Speculation::kOff;
  if (name == "chain") return Speculation::kChain;
  if (name == "tree") return Speculation::kTree;
  return Status(StatusCode::kInvalidArgument,
                "--speculation: expected off, chain or tree, got " + std::string(name));
}

int64_t Draft::depth(int64_t node) const {
  return static_cast<int64_t>(path_to(parent, node).size()) - 1;
}

int64_t Draft::drafted() const {
  int64_t count = 0;
  for (int64_t node = 1; node < valid; ++node) count += inert(node) ? 0 : 1;
  return count;
}

Draft make_draft(const SpeculationOptions& options, int64_t valid, int64_t request,
                 int64_t position) {
  Words words(options.seed, request, position);
  Draft draft;
  draft.valid = valid;
  if (options.kind == Speculation::kTree) {
    draft.parent = random_parents(valid, words);
  } else {
    for (int64_t node = 0; node < valid; ++node) {
      draft.parent.push_back(static_cast<int32_t>(node - 1));
    }
  }
  draft.accepted = longest_path(draft, words);
  size_t right = 1;
  while (right < draft.accepted.size() && words.unit() < options.acceptance) ++right;
  draft.accepted.resize(right);
  return draft;
}

void plan_drafts(const SpeculationOptions& options, std::span<const TraceRequest> trace,
                 int64_t step, StepPlan& plan) {
  if (options.kind == Speculation::kOff) return;
  std::vector<ScheduledRow> decode;
  for (ScheduledRow row : plan.decode) {
    const int64_t left = trace[static_cast<size_t>(row.request)].total_tokens() - row.start;
    int64_t valid = std::min(options.draft_length, left);
    Words words(~options.seed, row.request, row.start);
    const bool plain = words.below(8) < options.plain_in_eight;
    if (options.kind == Speculation::kTree && valid > 2 && words.below(kOneIn) == 0) {
      valid = 2 + words.below(valid - 2);
    }
    if (valid < 2 || plain) {
      decode.push_back(row);
      continue;
    }
    Draft draft = make_draft(options, valid, row.request, row.start);
    row.tokens = static_cast<int64_t>(draft.accepted.size());
    while (step % 2 == 0 && draft.width() < options.draft_length) {
      draft.parent.push_back(static_cast<int32_t>(draft.width() - 1));
    }
    plan.verify.push_back({row, std::move(draft)});
  }
  plan.decode = std::move(decode);
}

uint64_t draft_token_id(const Draft& draft, int64_t node, const TraceRequest& request,
                        int64_t index, int64_t position) {
  const uint64_t right = token_id(request, index, position);
  const auto& path = draft.accepted;
  if (std::find(path.begin(), path.end(), node) != path.end()) return right;
  const uint64_t other = hash64(right + static_cast<uint64_t>(node) + 1);
  return other == right ? ~right : other;
}

}  // namespace linestate::cli
