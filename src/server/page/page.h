#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

// The web page: files that are part of the program, and how a request for one is answered.
namespace lca::server {

/// A file of the page, as sources.cmake embeds it.
struct PageFile {
  std::string_view name;  ///< as in this folder: "app.js"
  std::string_view content_type;
  std::string_view etag;  ///< quoted; changes with the bytes
  std::string_view bytes;
};

/// What to send; everything points into the program and lives as long as it.
struct PageAnswer {
  int status = 200;  ///< 200, or 304 without a body
  std::string_view content_type;
  std::string_view body;
  std::vector<std::pair<std::string_view, std::string_view>> headers;  ///< ETag, CSP and others
};

/// All embedded files.
std::span<const PageFile> page_files();

/// Answers GET or HEAD of `/`, `/index.html` and `/page/NAME`; nothing where the path is no file of
/// the page. `if_none_match` is the request's header, empty where it has none.
std::optional<PageAnswer> page_answer(std::string_view path, std::string_view if_none_match);

}  // namespace lca::server
