#pragma once
/// The tokens of a vocabulary as a tree of their bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

/// All nodes in the order of a depth-first walk: the nodes below i are those up to `end[i]`, and
/// passing over them is one assignment. The root is not stored.
class Vocabulary {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  /// `tokens[i]` are the bytes of id i; ids with no bytes are in no node.
  explicit Vocabulary(std::span<const std::string_view> tokens);

  struct TreeNode {
    std::uint32_t end = 0;  ///< the first node that is not below this one
    std::uint32_t tokens =
        0;  ///< where its own tokens begin in `order`; they end at the next node's
    std::uint32_t parent = kNone;
    std::uint16_t depth = 0;  ///< bytes from the root
    std::uint8_t byte = 0;
  };

  /// Number of ids.
  std::size_t size() const { return size_; }
  /// One more than there are: the last only ends the tokens of the one before.
  const std::vector<TreeNode>& nodes() const { return nodes_; }
  std::uint32_t node_count() const { return static_cast<std::uint32_t>(nodes_.size() - 1); }
  /// Ids whose bytes end at a node.
  std::span<const std::int32_t> tokens_at(std::uint32_t node) const {
    return std::span(order_).subspan(nodes_[node].tokens,
                                     nodes_[node + 1].tokens - nodes_[node].tokens);
  }
  /// Bytes of the longest token.
  std::uint32_t longest() const { return longest_; }
  /// The bytes from the root to a node.
  void path(std::uint32_t node, std::string& bytes) const;

 private:
  std::size_t size_ = 0;
  std::uint32_t longest_ = 0;
  std::vector<TreeNode> nodes_;
  std::vector<std::int32_t> order_;
};

}  // namespace lca::server
