#pragma once
/// Session files (docs/sessions.md specifies them byte by byte).

#include <lca/cache.h>
#include <lca/file_access.h>
#include <lca/model.h>
#include <lca/session.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// The version that is written. Version 1, which has no device and no marks, version 2, which has
/// no rope_positions, and version 3, which has no storage, can be read too.
inline constexpr std::uint32_t kSessionVersion = 4;

/// Everything in a session file but the caches.
struct SessionHead {
  std::uint32_t version = kSessionVersion;
  std::string program;      ///< version that wrote it
  std::string fingerprint;  ///< of the checkpoint and its adapter (version 1: of precision too)
  std::string model;        ///< file or folder name
  std::string architecture;
  std::string weights;         ///< their storage type
  std::string device = "cpu";  ///< where it was computed
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  AttentionShape shape;
  DType dtype = DType::f32;  ///< of the caches
  CacheStorage storage = CacheStorage::plain;
  Precision precision = Precision::f32;
  double scale = 0;                   ///< of the softmax
  std::vector<Settings> settings;     ///< one per layer
  std::int64_t truncate_floor = 0;    ///< the shortest length it can be cut to
  std::int64_t prompt_end = 0;        ///< where the last prompt ended
  std::int64_t rope_positions = 0;    ///< decided the frequencies; 0: none yet, or token positions
  std::vector<std::int32_t> tokens;   ///< taken
  std::vector<std::int32_t> pending;  ///< still to be read
  std::vector<float> logits;          ///< after the last token; empty: not known

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  /// The specification of a layer's cache, except for its rotation, which is the model's.
  LayerSpec spec(std::size_t layer) const {
    return {shape, settings[layer], dtype, scale, {}, storage};
  }
};

/// A position the session can return to.
struct SavedMark {
  std::int64_t position = 0;
  std::int64_t prompt_end = 0;
  std::vector<float> logits;                 ///< empty: not known
  std::vector<std::optional<Cache>> caches;  ///< per layer; empty: the layer can be truncated
};

struct SessionRecord {
  SessionHead head;
  std::vector<Cache> caches;  ///< one per layer
  std::vector<SavedMark> marks;
};

/// Writes piece by piece to a temporary file, syncs and renames.
void session_write(const std::string& path, const SessionRecord& record);

/// Reads a session file and checks all of it: the checksum first, then every value against the
/// others. Throws Error (bad input) that begins with `name`.
SessionRecord session_parse(std::span<const std::byte> bytes, std::string_view name);
SessionRecord session_read(const std::string& path, FileAccess access = FileAccess::map);
/// What stands before the caches, and nothing behind it: the checksum, which is of all, is not
/// checked, so that it costs no more than it holds.
SessionHead session_read_head(const std::string& path, FileAccess access = FileAccess::map);

/// Restores a session from a record, as Session::load does; `name` is the file's.
Session session_resume(SessionRecord record, std::shared_ptr<const Model> model, Context& context,
                       const SessionOptions& options, std::string_view name);

/// Throws Error naming the first setting in which the file differs from `wanted`, which has one
/// entry per layer or one for all.
void session_check_settings(const SessionHead& head, const std::vector<Settings>& wanted,
                            std::string_view name);

/// Cuts a saved session to its first `length` tokens without its model: the last of them becomes
/// pending, since its logits are not in the file, unless the position is marked. Throws Error
/// (beginning with `name`) if the caches cannot be cut that far; `incompatible` where the model
/// could read the text again.
void session_cut(SessionRecord& record, std::int64_t length, std::string_view name);

/// Rewrites size and checksum, so that fuzzed files pass those checks.
void session_seal(std::vector<std::byte>& bytes);

}  // namespace lca
