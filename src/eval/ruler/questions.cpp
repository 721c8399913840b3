#include "eval/ruler/questions.h"

#include "core/error.h"
#include "core/text.h"
#include "eval/ruler/source_text.h"

#include <algorithm>

namespace lca::eval {
namespace {

using QuestionJson = nlohmann::ordered_json;

void documents_sort(std::vector<std::string>& documents) {
  std::ranges::sort(documents);
  documents.erase(std::unique(documents.begin(), documents.end()), documents.end());
}

std::size_t document_index(const QuestionSet& set, const std::string& document) {
  return static_cast<std::size_t>(std::ranges::lower_bound(set.documents, document) -
                                  set.documents.begin());
}

void require_questions(const QuestionSet& set, const std::string& where) {
  if (set.questions.empty()) fail_input("{}: holds no question that has an answer", where);
}

std::vector<std::string> squad_answers(const QuestionJson& question, const std::string& where) {
  std::vector<std::string> answers;
  const auto impossible = question.find("is_impossible");
  if (impossible != question.end() && impossible->is_boolean() && impossible->get<bool>()) {
    return answers;
  }
  for (const QuestionJson& each : json_list(question, "answers", where)) {
    answers.push_back(json_text(each, "text", where));
  }
  return answers;
}

/// Title and paragraph of an entry [title, [sentence, …]].
std::string hotpotqa_document(const QuestionJson& entry, const std::string& where) {
  const bool pair =
      entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_array() &&
      std::ranges::all_of(entry[1], [](const auto& each) { return each.is_string(); });
  if (!pair) fail_input("{}: an entry of \"context\" is not [title, [sentence, …]]", where);
  std::string document = entry[0].get<std::string>() + "\n";
  for (const QuestionJson& sentence : entry[1]) document += sentence.get_ref<const std::string&>();
  return document;
}

}  // namespace

QuestionSet squad_load(const std::filesystem::path& path) {
  const std::string where = path_printable(path.string());
  const QuestionJson file = source_json(path, source_read(path));
  QuestionSet set;
  for (const QuestionJson& article : json_list(file, "data", where)) {
    for (const QuestionJson& paragraph : json_list(article, "paragraphs", where)) {
      set.documents.push_back(json_text(paragraph, "context", where));
    }
  }
  documents_sort(set.documents);
  for (const QuestionJson& article : file["data"]) {
    std::vector<std::size_t> all;
    for (const QuestionJson& paragraph : article["paragraphs"]) {
      all.push_back(document_index(set, paragraph["context"].get_ref<const std::string&>()));
    }
    std::size_t at = 0;
    for (const QuestionJson& paragraph : article["paragraphs"]) {
      const std::size_t own = all[at++];
      for (const QuestionJson& each : json_list(paragraph, "qas", where)) {
        QaItem question{json_text(each, "question", where), squad_answers(each, where), {own}, {}};
        if (question.answers.empty()) continue;
        std::ranges::copy_if(all, std::back_inserter(question.related),
                             [&](std::size_t other) { return other != own; });
        set.questions.push_back(std::move(question));
      }
    }
  }
  require_questions(set, where);
  return set;
}

QuestionSet hotpotqa_load(const std::filesystem::path& path) {
  const std::string where = path_printable(path.string());
  const QuestionJson file = source_json(path, source_read(path));
  if (!file.is_array()) fail_input("{}: is no list of questions", where);
  QuestionSet set;
  for (const QuestionJson& each : file) {
    for (const QuestionJson& entry : json_list(each, "context", where)) {
      set.documents.push_back(hotpotqa_document(entry, where));
    }
  }
  documents_sort(set.documents);
  for (const QuestionJson& each : file) {
    QaItem question{json_text(each, "question", where), {json_text(each, "answer", where)}, {}, {}};
    for (const QuestionJson& entry : each["context"]) {
      question.documents.push_back(document_index(set, hotpotqa_document(entry, where)));
    }
    set.questions.push_back(std::move(question));
  }
  require_questions(set, where);
  return set;
}

}  // namespace lca::eval
