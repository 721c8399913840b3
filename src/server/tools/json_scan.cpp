#include "server/tools/json_scan.h"

namespace lca::server {
namespace {

constexpr std::size_t kScanDepthMost = 128;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

JsonScan::Status JsonScan::feed(char c) {
  if (status_ == Status::done) status_ = Status::bad;
  if (status_ == Status::more && !step(c)) status_ = Status::bad;
  ++at_;
  return status_;
}

bool JsonScan::step(char c) {
  switch (state_) {
    case State::string:
    case State::escape:
    case State::hex:
      return string(c);
    case State::literal:
      if (c != literal_.front()) return false;
      literal_.remove_prefix(1);
      if (literal_.empty()) value_end(at_ + 1);
      return true;
    case State::minus:
    case State::zero:
    case State::whole:
    case State::point:
    case State::fraction:
    case State::exponent:
    case State::exponent_sign:
    case State::exponent_digits:
      return number(c);
    default:
      break;
  }
  if (is_space(c)) return state_ != State::start;
  switch (state_) {
    case State::start:
      if (c != '{') return false;
      open_ = "{";
      state_ = State::first_key;
      return true;
    case State::first_key:
      if (c == '}') return close(c);
      [[fallthrough]];
    case State::key:
      if (c != '"') return false;
      in_key_ = true;
      state_ = State::string;
      if (open_.size() == 1) members_.push_back({.key = at_ + 1});
      return true;
    case State::colon:
      state_ = State::value;
      return c == ':';
    case State::first_value:
      if (c == ']') return close(c);
      [[fallthrough]];
    case State::value:
      return value_begin(c);
    default:  // after
      if (c != ',') return close(c);
      state_ = open_.back() == '{' ? State::key : State::value;
      return true;
  }
}

bool JsonScan::value_begin(char c) {
  if (open_.size() == 1) members_.back().value = at_;
  in_key_ = false;
  switch (c) {
    case '{':
    case '[':
      if (open_.size() >= kScanDepthMost) return false;
      open_ += c;
      state_ = c == '{' ? State::first_key : State::first_value;
      return true;
    case '"':
      state_ = State::string;
      return true;
    case 't':
    case 'f':
    case 'n':
      literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
      state_ = State::literal;
      return true;
    case '-':
      state_ = State::minus;
      return true;
    default:
      state_ = c == '0' ? State::zero : State::whole;
      return is_digit(c);
  }
}

void JsonScan::value_end(std::size_t end) {
  state_ = State::after;
  if (open_.size() == 1) members_.back().value_end = end;
}

bool JsonScan::close(char c) {
  if (c != (open_.back() == '{' ? '}' : ']')) return false;
  open_.pop_back();
  if (open_.empty()) {
    status_ = Status::done;
  } else {
    value_end(at_ + 1);
  }
  return true;
}

bool JsonScan::string(char c) {
  if (state_ == State::hex) {
    if (--hex_left_ == 0) state_ = State::string;
    return is_hex(c);
  }
  if (state_ == State::escape) {
    state_ = c == 'u' ? State::hex : State::string;
    hex_left_ = 4;
    return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
  }
  if (c == '\\') {
    state_ = State::escape;
  } else if (c == '"') {
    if (in_key_) {
      state_ = State::colon;
      if (open_.size() == 1) members_.back().key_end = at_;
    } else {
      value_end(at_ + 1);
    }
  }
  return static_cast<unsigned char>(c) >= 0x20;
}

bool JsonScan::number(char c) {
  const bool digit = is_digit(c);
  switch (state_) {
    case State::minus:
      state_ = c == '0' ? State::zero : State::whole;
      return digit;
    case State::point:
    case State::exponent_sign:
      state_ = state_ == State::point ? State::fraction : State::exponent_digits;
      return digit;
    case State::exponent:
      state_ = digit ? State::exponent_digits : State::exponent_sign;
      return digit || c == '+' || c == '-';
    default:
      break;
  }
  if (digit) return state_ != State::zero;
  if (c == '.' && (state_ == State::zero || state_ == State::whole)) {
    state_ = State::point;
    return true;
  }
  if ((c == 'e' || c == 'E') && state_ != State::exponent_digits) {
    state_ = State::exponent;
    return true;
  }
  value_end(at_);
  return step(c);
}

}  // namespace lca::server
