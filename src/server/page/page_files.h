#pragma once

#include <span>
#include <string_view>

#include "server/page/page.h"

// Defined by the source that embed.cmake writes.
namespace lca::server {

std::span<const PageFile> embedded_files();

/// headers.txt: a header per line, for every file of the page.
std::string_view embedded_headers();

}  // namespace lca::server
