#pragma once
/// Questions about documents, from the files of SQuAD and HotpotQA.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace lca::eval {

struct QaItem {
  std::string text;
  std::vector<std::string> answers;    ///< any of them counts
  std::vector<std::size_t> documents;  ///< that hold the answer
  std::vector<std::size_t> related;    ///< of the same article
};

/// Questions, and all documents in sorted order, each once.
struct QuestionSet {
  std::vector<std::string> documents;
  std::vector<QaItem> questions;
};

/// A file of SQuAD 1.1 or 2.0; questions without an answer are left out. Throws Error naming what
/// is wrong.
QuestionSet squad_load(const std::filesystem::path& path);
/// A file of HotpotQA, "distractor" form. Throws Error naming what is wrong.
QuestionSet hotpotqa_load(const std::filesystem::path& path);

}  // namespace lca::eval
