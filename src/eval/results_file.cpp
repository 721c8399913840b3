#include "eval/results_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace lca::eval {
namespace {

/// Marks a file as ours; the value is the version of its form.
constexpr const char* kResultsMark = "lca_results";
constexpr int kResultsVersion = 1;

std::string results_name(const std::filesystem::path& path) {
  return path_printable(path.native());
}

std::string results_system_error(int code) { return std::generic_category().message(code); }

Json results_header(const Json& fingerprint) {
  Json header = {{kResultsMark, kResultsVersion}};
  header.update(fingerprint);
  return header;
}

/// Bytes that are not UTF-8 (a path, say) are replaced.
std::string results_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string results_value(const Json& json) {
  constexpr std::size_t kMost = 60;
  return text_printable(json.dump(-1, ' ', false, Json::error_handler_t::replace), kMost);
}

/// The first field that differs, in words; empty where none does.
std::string results_difference(const Json& kept, const Json& wanted) {
  for (const auto& [name, value] : wanted.items()) {
    if (!kept.contains(name)) return fmt::format("{} is not in it", text_printable(name));
    const Json& other = kept[name];
    if (other == value) continue;
    if (other.is_object() && value.is_object()) {
      const std::string inside = results_difference(other, value);
      if (!inside.empty()) return fmt::format("{}: {}", text_printable(name), inside);
    }
    return fmt::format("{} is {} there and {} here", text_printable(name), results_value(other),
                       results_value(value));
  }
  for (const auto& [name, value] : kept.items()) {
    if (!wanted.contains(name)) {
      return fmt::format("{} is {} there and not set here", text_printable(name),
                         results_value(value));
    }
  }
  return {};
}

int results_open(const std::filesystem::path& path) {
  for (;;) {
    const int number =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (number >= 0) return number;
    const int code = errno;
    if (code == EINTR) continue;
    if (code == ENOENT || code == ENOTDIR) {
      fail_not_found("{}: {}", results_name(path), results_system_error(code));
    }
    fail_input("{}: {}", results_name(path), results_system_error(code));
  }
}

}  // namespace

ResultsFile::ResultsFile(std::filesystem::path path, const Json& fingerprint)
    : path_(std::move(path)), file_(results_open(path_)) {
  struct stat info {};
  if (::fstat(file_.number(), &info) != 0 || !S_ISREG(info.st_mode)) {
    fail_input("{}: is not a file that results can be written to", results_name(path_));
  }
  if (::flock(file_.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    fail_busy("{}: another run writes to it; wait for its end, or name another file",
              results_name(path_));
  }
  read(fingerprint);
}

void ResultsFile::read(const Json& fingerprint) {
  const MappedFile mapped(path_, FileAccess::read);
  const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()),
                              mapped.bytes().size());
  const Json header = results_header(fingerprint);
  const std::string first = results_line(header);
  const std::size_t whole = text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1;
  // A run that was killed while it wrote the first line leaves a part of it.
  if (whole == 0 && !first.starts_with(text)) {
    fail_input("{}: holds something else than results; name another file", results_name(path_));
  }
  std::int64_t number = 0;
  for (std::size_t at = 0; at < whole;) {
    const std::size_t end = text.find('\n', at);
    Json line = Json::parse(text.substr(at, end - at), nullptr, false);
    ++number;
    at = end + 1;
    if (number == 1) {
      if (!line.is_object() || !line.contains(kResultsMark)) {
        fail_input("{}: holds something else than results; name another file", results_name(path_));
      }
      if (const std::string what = results_difference(line, header); !what.empty()) {
        fail_incompatible("{}: holds results of another run: {}; name another file",
                          results_name(path_), what);
      }
    } else if (!line.is_object()) {
      fail_input("{}: line {} is damaged; name another file, or remove that line",
                 results_name(path_), number);
    } else {
      rows_.push_back(std::move(line));
    }
  }
  if (::ftruncate(file_.number(), static_cast<off_t>(whole)) != 0 ||
      ::lseek(file_.number(), 0, SEEK_END) < 0) {
    const int code = errno;
    fail_io("{}: cannot be written: {}", results_name(path_), results_system_error(code));
  }
  if (whole == 0) write(first);
}

void ResultsFile::add(const Json& row) { write(results_line(row)); }

void ResultsFile::write(const std::string& line) {
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t count = ::write(file_.number(), left.data(), left.size());
    if (count >= 0) {
      left.remove_prefix(static_cast<std::size_t>(count));
    } else if (const int code = errno; code != EINTR) {
      fail_io("{}: cannot be written: {}", results_name(path_), results_system_error(code));
    }
  }
}

}  // namespace lca::eval
