#include "state/prefix_tree.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace linestate {
namespace {

using Tokens = std::span<const int64_t>;

int64_t length(const std::vector<int64_t>& tokens) { return static_cast<int64_t>(tokens.size()); }
int64_t length(Tokens tokens) { return static_cast<int64_t>(tokens.size()); }
Tokens from(Tokens tokens, int64_t at) { return tokens.subspan(static_cast<size_t>(at)); }

// Destroys a whole family without recursion: a long conversation is a chain of many nodes.
void destroy(std::vector<std::unique_ptr<PrefixTree::Node>> nodes) {
  while (!nodes.empty()) {
    const std::unique_ptr<PrefixTree::Node> node = std::move(nodes.back());
    nodes.pop_back();
    for (std::unique_ptr<PrefixTree::Node>& child : node->children) {
      nodes.push_back(std::move(child));
    }
  }
}

}  // namespace

PrefixTree::PrefixTree(int64_t block_tokens) : block_(block_tokens) {}
PrefixTree::~PrefixTree() { destroy(std::move(root_.children)); }

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

// Cuts the child's edge after `at` tokens; the new node in the middle.
PrefixTree::Node* PrefixTree::split(Children::iterator child, int64_t at) {
  auto middle = std::make_unique<Node>();
  Node* lower = child->get();
  middle->edge.assign(lower->edge.begin(), lower->edge.begin() + at);
  lower->edge.erase(lower->edge.begin(), lower->edge.begin() + at);
  middle->parent = lower->parent;
  lower->parent = middle.get();
  std::swap(*child, middle);  // same first block, so the order of the children stays
  (*child)->children.push_back(std::move(middle));
  ++num_nodes_;
  return child->get();
}

PrefixTree::Node* PrefixTree::insert(Tokens tokens) {
  Node* node = &root_;
  while (!tokens.empty()) {
    const auto child = lower_child(node, tokens);
    if (child == node->children.end() || !starts_with_block(**child, tokens)) {
      auto leaf = std::make_unique<Node>();
      leaf->edge.assign(tokens.begin(), tokens.end());
      leaf->parent = node;
      ++num_nodes_;
      return node->children.insert(child, std::move(leaf))->get();
    }
    const int64_t common = common_tokens(**child, tokens);
    node = common == length((*child)->edge) ? child->get() : split(child, common);
    tokens = from(tokens, common);
  }
  return node;
}

// A fork with one way out is no fork: the child takes its place.
void PrefixTree::join(Node* node) {
  if (node == &root_ || node->value != nullptr || node->children.size() != 1) return;
  std::unique_ptr<Node> child = std::move(node->children.front());
  child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
  child->parent = node->parent;
  const auto place = lower_child(node->parent, node->edge);
  *place = std::move(child);
  --num_nodes_;
}

void PrefixTree::remove(Node* node) {
  node->value = nullptr;
  if (!node->children.empty()) return join(node);
  Node* parent = node->parent;
  parent->children.erase(lower_child(parent, node->edge));
  --num_nodes_;
  join(parent);
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
