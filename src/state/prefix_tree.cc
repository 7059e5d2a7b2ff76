#include "state/prefix_tree.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace linestate {
namespace {

using Tokens = std::span<const int64_t>;

int64_t length(const std::vector<int64_t>& tokens) { return static_cast<int64_t>(tokens.size()); }
int64_t length(Tokens tokens) { return static_cast<int64_t>(tokens.size()); }
Tokens from(Tokens tokens, int64_t at) { return tokens.subspan(static_cast<size_t>(at)); }

// Destroys everything below `root` without recursion, since a long conversation is a chain of many
// nodes, and without memory: always the last child of the deepest node that still has any.
void destroy_below(PrefixTree::Node& root) {
  PrefixTree::Node* node = &root;
  while (node != &root || !node->children.empty()) {
    if (!node->children.empty()) {
      node = node->children.back().get();
    } else {
      node = node->parent;
      node->children.pop_back();
    }
  }
}

}  // namespace

PrefixTree::PrefixTree(int64_t block_tokens) : block_(block_tokens) {}
PrefixTree::~PrefixTree() { destroy_below(root_); }

PrefixTree::Children::iterator PrefixTree::lower_child(Node* node, Tokens tokens) const {
  const Tokens block = tokens.first(static_cast<size_t>(block_));
  return std::lower_bound(node->children.begin(), node->children.end(), block,
                          [this](const std::unique_ptr<Node>& child, Tokens wanted) {
                            return std::lexicographical_compare(child->edge.begin(),
                                                                child->edge.begin() + block_,
                                                                wanted.begin(), wanted.end());
                          });
}

bool PrefixTree::starts_with_block(const Node& child, Tokens tokens) const {
  return std::equal(tokens.begin(), tokens.begin() + block_, child.edge.begin());
}

// Tokens of the child's edge that `tokens` follows, in whole blocks.
int64_t PrefixTree::common_tokens(const Node& child, Tokens tokens) const {
  const int64_t most = std::min(length(child.edge), length(tokens));
  const auto differs =
      std::mismatch(child.edge.begin(), child.edge.begin() + most, tokens.begin()).first;
  const int64_t same = differs - child.edge.begin();
  return same - same % block_;
}

PrefixTree::Node* PrefixTree::longest(Tokens tokens) {
  Node* best = nullptr;
  Node* node = &root_;
  while (length(tokens) >= block_) {
    const auto child = lower_child(node, tokens);
    if (child == node->children.end()) break;
    const int64_t edge = length((*child)->edge);
    if (length(tokens) < edge || common_tokens(**child, tokens) < edge) break;
    node = child->get();
    tokens = from(tokens, edge);
    if (node->value != nullptr) best = node;
  }
  return best;
}

PrefixTree::Node* PrefixTree::find(Tokens tokens) {
  Node* node = &root_;
  while (length(tokens) >= block_) {
    const auto child = lower_child(node, tokens);
    if (child == node->children.end()) return nullptr;
    const int64_t edge = length((*child)->edge);
    if (length(tokens) < edge || common_tokens(**child, tokens) < edge) return nullptr;
    node = child->get();
    tokens = from(tokens, edge);
  }
  return tokens.empty() && node != &root_ ? node : nullptr;
}

// Cuts the child's edge after `at` tokens; `leaf`, when there is one, goes below the new node in
// the middle. Returns the node of the tokens that led here: the leaf, or the middle. All or
// nothing.
PrefixTree::Node* PrefixTree::split(Children::iterator child, int64_t at,
                                    std::unique_ptr<Node> leaf) {
  auto middle = std::make_unique<Node>();
  Node* lower = child->get();
  middle->edge.assign(lower->edge.begin(), lower->edge.begin() + at);
  middle->children.reserve(2);
  // Nothing from here on needs memory.
  Node* made = leaf != nullptr ? leaf.get() : middle.get();
  lower->edge.erase(lower->edge.begin(), lower->edge.begin() + at);
  middle->parent = lower->parent;
  lower->parent = middle.get();
  std::swap(*child, middle);  // same first block, so the order of the children stays
  Node* fork = child->get();
  fork->children.push_back(std::move(middle));
  if (leaf != nullptr) {
    leaf->parent = fork;
    fork->children.insert(lower_child(fork, leaf->edge), std::move(leaf));
    ++num_nodes_;
  }
  ++num_nodes_;
  return made;
}

PrefixTree::Node* PrefixTree::insert(Tokens tokens) {
  Node* node = &root_;
  while (!tokens.empty()) {
    const auto child = lower_child(node, tokens);
    const bool known = child != node->children.end() && starts_with_block(**child, tokens);
    const int64_t common = known ? common_tokens(**child, tokens) : 0;
    const Tokens rest = from(tokens, common);
    if (known && common == length((*child)->edge)) {
      node = child->get();
      tokens = rest;
      continue;
    }
    std::unique_ptr<Node> leaf;
    if (!rest.empty()) {
      leaf = std::make_unique<Node>();
      leaf->edge.assign(rest.begin(), rest.end());
      leaf->parent = node;
    }
    if (known) return split(child, common, std::move(leaf));
    Node* made = node->children.insert(child, std::move(leaf))->get();
    ++num_nodes_;
    return made;
  }
  return node;
}

// A fork with one way out is no fork: the child takes its place. Without memory for the longer edge
// the fork stays, which costs a node and nothing else.
void PrefixTree::join(Node* node) noexcept {
  if (node == &root_ || node->value != nullptr || node->children.size() != 1) return;
  Node* only = node->children.front().get();
  try {
    only->edge.reserve(only->edge.size() + node->edge.size());
  } catch (const std::bad_alloc&) {
    return;
  }
  const auto place = lower_child(node->parent, node->edge);
  std::unique_ptr<Node> child = std::move(node->children.front());
  child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
  child->parent = node->parent;
  *place = std::move(child);
  --num_nodes_;
}

void PrefixTree::remove(Node* node) noexcept {
  node->value = nullptr;
  // More than one turn only above a fork that could not be joined.
  while (node != &root_ && node->value == nullptr && node->children.empty()) {
    Node* parent = node->parent;
    parent->children.erase(lower_child(parent, node->edge));
    --num_nodes_;
    node = parent;
  }
  join(node);
}

const char* PrefixTree::broken_rule() const {
  std::vector<const Node*> open = {&root_};
  int64_t count = -1;  // the root
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    ++count;
    if (node != &root_) {
      if (node->edge.empty() || length(node->edge) % block_ != 0) return "edge of whole blocks";
      if (node->value == nullptr && node->children.size() < 2) return "a node serves";
    }
    for (size_t i = 0; i < node->children.size(); ++i) {
      const Node& child = *node->children[i];
      if (child.parent != node) return "child knows its parent";
      if (length(child.edge) < block_) return "edge of whole blocks";
      if (i > 0 && !std::lexicographical_compare(node->children[i - 1]->edge.begin(),
                                                 node->children[i - 1]->edge.begin() + block_,
                                                 child.edge.begin(), child.edge.begin() + block_)) {
        return "children in order";
      }
      open.push_back(&child);
    }
  }
  return count == num_nodes_ ? "" : "number of nodes";
}

}  // namespace linestate
