#pragma once
/// Reads one JSON object byte by byte and says at each byte whether it can still become one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

class JsonScan {
 public:
  enum class Status : std::uint8_t {
    more,  ///< the beginning of an object
    done,  ///< an object; nothing may follow
    bad,   ///< not an object, whatever follows
  };

  /// A member of the object itself, as places in the bytes fed: the key without its quotes, the
  /// value as written.
  struct Member {
    std::size_t key = 0, key_end = 0;
    std::size_t value = 0, value_end = 0;  ///< `value_end` 0: not ended yet
  };

  Status feed(char c);
  Status status() const { return status_; }
  const std::vector<Member>& members() const { return members_; }

 private:
  enum class State : std::uint8_t {
    start,        // before the object
    first_key,    // after {
    key,          // after a comma in an object
    colon,        // after a key
    first_value,  // after [
    value,
    after,  // after a value: a comma or the end of what holds it
    string,
    escape,
    hex,
    literal,
    minus,
    zero,
    whole,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
  };

  bool step(char c);
  bool value_begin(char c);
  void value_end(std::size_t end);
  bool close(char c);
  bool number(char c);
  bool string(char c);

  Status status_ = Status::more;
  State state_ = State::start;
  bool in_key_ = false;
  int hex_left_ = 0;
  std::string_view literal_;  // what must still come of true, false or null
  std::string open_;          // { and [ that are not closed
  std::size_t at_ = 0;        // bytes fed
  std::vector<Member> members_;
};

}  // namespace lca::server
