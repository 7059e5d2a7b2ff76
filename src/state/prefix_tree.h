// A radix tree over blocks of tokens with compressed edges. A node stands for the tokens on the way
// to it; nodes that hold a value are what the tree is for, the others are forks. Apart from the
// root, every node holds a value or has at least two children; one child when memory ran out as it
// was to be joined with it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace linestate {

class PrefixTree {
 public:
  struct Node {
    std::vector<int64_t>
        edge;  // tokens between the parent and here: whole blocks, none at the root
    Node* parent = nullptr;
    void* value = nullptr;
    std::vector<std::unique_ptr<Node>> children;  // ordered by first block; first blocks distinct
  };

  /// REQUIRES: block_tokens >= 1.
  explicit PrefixTree(int64_t block_tokens);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree();

  /// The deepest node with a value whose tokens start `tokens`; null when there is none.
  Node* longest(std::span<const int64_t> tokens);
  /// The node of exactly these tokens, with or without a value; null when there is none.
  Node* find(std::span<const int64_t> tokens);
  /// The node of exactly these tokens, made when missing. The caller sets its value.
  /// REQUIRES: the size is a positive multiple of block_tokens. Throws std::bad_alloc, nothing
  /// done.
  Node* insert(std::span<const int64_t> tokens);
  /// Takes the value away and with it the nodes that no longer serve. Needs no memory.
  void remove(Node* node) noexcept;

  /// Nodes below the root.
  int64_t num_nodes() const { return num_nodes_; }
  /// Empty when the rules at the top hold, otherwise the broken one. For tests; walks everything.
  const char* broken_rule() const;

 private:
  using Children = std::vector<std::unique_ptr<Node>>;
  // Where the child whose edge starts with this block is, or would be.
  Children::iterator lower_child(Node* node, std::span<const int64_t> tokens) const;
  bool starts_with_block(const Node& child, std::span<const int64_t> tokens) const;
  int64_t common_tokens(const Node& child, std::span<const int64_t> tokens) const;
  Node* split(Children::iterator child, int64_t at, std::unique_ptr<Node> leaf);
  void join(Node* node) noexcept;

  int64_t block_;
  int64_t num_nodes_ = 0;
  Node root_;
};

}  // namespace linestate
