#include "server/page/page.h"

#include <algorithm>

#include "server/page/page_files.h"

namespace lca::server {
namespace {

constexpr std::string_view page_prefix = "/page/";

// The weak comparison of RFC 9110, 13.1.2: any tag of the list, `W/` ignored. Our tags hold no
// comma.
bool etag_matches(std::string_view list, std::string_view etag) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view tag = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
    while (!tag.empty() && is_blank(tag.front())) tag.remove_prefix(1);
    while (!tag.empty() && is_blank(tag.back())) tag.remove_suffix(1);
    if (tag.starts_with("W/")) tag.remove_prefix(2);
    if (tag == "*" || tag == etag) return true;
  }
  return false;
}

void embedded_headers_append(std::vector<std::pair<std::string_view, std::string_view>>& headers) {
  std::string_view rest = embedded_headers();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t colon = line.find(": ");
    if (colon != std::string_view::npos) {
      headers.emplace_back(line.substr(0, colon), line.substr(colon + 2));
    }
  }
}

}  // namespace

std::span<const PageFile> page_files() { return embedded_files(); }

std::optional<PageAnswer> page_answer(std::string_view path, std::string_view if_none_match) {
  std::string_view name = "index.html";
  if (path.starts_with(page_prefix)) {
    name = path.substr(page_prefix.size());
  } else if (path != "/" && path != "/index.html") {
    return std::nullopt;
  }
  const std::span<const PageFile> files = page_files();
  const auto file = std::ranges::find(files, name, &PageFile::name);
  if (file == files.end()) return std::nullopt;

  PageAnswer answer;
  answer.content_type = file->content_type;
  answer.headers.emplace_back("ETag", file->etag);
  embedded_headers_append(answer.headers);
  if (etag_matches(if_none_match, file->etag)) {
    answer.status = 304;
  } else {
    answer.body = file->bytes;
  }
  return answer;
}

}  // namespace lca::server
