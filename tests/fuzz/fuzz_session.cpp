// Session files of hostile bytes, and all operations on those that are accepted.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "engine/session_file.h"
#include "fuzz/require.h"
#include "support/cache_exercise.h"

namespace {

using lca::fuzz::require;

void exercise(lca::SessionRecord& record) {
  const lca::SessionHead& head = record.head;
  require(record.caches.size() == static_cast<std::size_t>(head.layers));
  require(head.settings.size() == record.caches.size());
  require(head.truncate_floor <= head.length() && head.prompt_end <= head.length());
  for (const lca::Cache& cache : record.caches) lca::test::cache_exercise(cache);
  try {
    lca::session_check_settings(head, {lca::Settings{}}, "f");
  } catch (const lca::Error& error) {
    lca::fuzz::check_message(error, "f: ");
  }
  const std::int64_t length = head.length();
  for (const std::int64_t to : {length, length - 1, head.truncate_floor + 1, std::int64_t{0}}) {
    try {
      lca::session_cut(record, to, "f");
      require(head.length() + static_cast<std::int64_t>(head.pending.size()) >= to);
    } catch (const lca::Error& error) {
      lca::fuzz::check_message(error, "f: ");  // condensed, or a mode that cannot be cut
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  // Once as it is, and once with a valid checksum: an invalid one would hide all other checks.
  for (const bool sealed : {false, true}) {
    if (sealed) lca::session_seal(bytes);
    std::optional<lca::SessionRecord> record;
    try {
      record = lca::session_parse(bytes, "f");
    } catch (const lca::Error& error) {
      lca::fuzz::check_message(error, "f: ");
      continue;
    }
    exercise(*record);
  }
  return 0;
}
