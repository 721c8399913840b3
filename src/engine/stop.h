#pragma once
/// The search for stop strings in streamed text.

#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// Finds stop strings in streamed text, and withholds what may become one.
class StopFilter {
 public:
  /// Empty strings throw Error.
  explicit StopFilter(std::vector<std::string> stops);
  /// The text that can be emitted after one more piece.
  std::string push(std::string_view piece);
  /// The withheld rest, at the end of the text.
  std::string finish();
  /// Whether a stop string was found: everything from it on is dropped.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace lca
