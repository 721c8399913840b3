#include "server/tools/python_json.h"

#include "core/error.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace lca::server {
namespace {

constexpr int kDepthMost = 128;

void string_write(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

/// The shortest digits that read back as the same number, laid out as Python does: with an exponent
/// from 1e16 on and below 1e-4.
void float_write(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  std::array<char, 40> room{};
  const auto end =
      std::to_chars(room.data(), room.data() + room.size(), value, std::chars_format::scientific)
          .ptr;
  std::string_view text(room.data(), static_cast<std::size_t>(end - room.data()));
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const int power = std::atoi(std::string(text.substr(e + 1)).c_str());
  const int count = static_cast<int>(digits.size());
  if (power < -4 || power >= 16) {
    out += digits[0];
    if (count > 1) out.append(".").append(digits, 1);
    out += fmt::format("e{}{:02}", power < 0 ? '-' : '+', std::abs(power));
  } else if (power < 0) {
    out.append("0.").append(static_cast<std::size_t>(-power - 1), '0').append(digits);
  } else if (count <= power + 1) {
    out.append(digits).append(static_cast<std::size_t>(power + 1 - count), '0').append(".0");
  } else {
    out.append(digits, 0, static_cast<std::size_t>(power) + 1).append(".");
    out.append(digits, static_cast<std::size_t>(power) + 1);
  }
}

class PythonWriter {
 public:
  explicit PythonWriter(int indent) : indent_(indent) {}

  void write(const Json& value) {
    if (value.is_object()) {
      list(value, "{", "}", [&](auto at) {
        string_write(out, at.key());
        out += ": ";
        write(at.value());
      });
    } else if (value.is_array()) {
      list(value, "[", "]", [&](auto at) { write(*at); });
    } else if (value.is_string()) {
      string_write(out, value.get_ref<const std::string&>());
    } else if (value.is_number_float()) {
      float_write(out, value.get<double>());
    } else {
      out += value.dump();  // integers, true, false, null: the same in both
    }
  }

  std::string out;

 private:
  template <typename One>
  void list(const Json& value, std::string_view open, std::string_view close, const One& one) {
    if (depth_ >= kDepthMost) {
      fail_input("JSON is nested deeper than {} levels; make it flatter", kDepthMost);
    }
    out += open;
    ++depth_;
    bool first = true;
    for (auto at = value.begin(); at != value.end(); ++at) {
      if (!first) out += indent_ < 0 ? ", " : ",";
      first = false;
      line();
      one(at);
    }
    --depth_;
    if (!first) line();
    out += close;
  }

  void line() {
    if (indent_ < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(indent_ * depth_), ' ');
  }

  int indent_;
  int depth_ = 0;
};

}  // namespace

std::string python_json(const Json& value, int indent) {
  PythonWriter writer(indent);
  writer.write(value);
  return std::move(writer.out);
}

std::string python_json_string(std::string_view text) {
  std::string out;
  string_write(out, text);
  return out;
}

}  // namespace lca::server
