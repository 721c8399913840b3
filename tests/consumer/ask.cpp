// ask MODEL DOCUMENT QUESTION: streams a model's answer about a document.
#include <lca/lca.h>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

int main(int count, char** words) try {
  if (count != 4) throw lca::Error(lca::ErrorKind::bad_input, "ask MODEL DOCUMENT QUESTION");
  std::ifstream file(words[2]);
  if (!file) throw lca::Error(lca::ErrorKind::not_found, std::string("cannot read ") + words[2]);
  const std::string document(std::istreambuf_iterator<char>(file), {});
  lca::ModelOptions options;
  options.path = words[1];
  const auto model = lca::Model::load(options);
  lca::Context context;  // one thread per core
  lca::Session session(model, context);
  const lca::ChatMessage message{lca::ChatMessage::Role::user, document + "\n" + words[3]};
  lca::generate(session, model->chat().prompt({&message, 1}), {.end_tokens = model->end_tokens()},
                [](const auto& piece) { return bool(std::cout << piece.text << std::flush); });
  std::cout << '\n';
} catch (const lca::Error& error) {
  std::cerr << "ask: " << error.what() << '\n';
  return lca::error_exit_code(error.kind());
}
