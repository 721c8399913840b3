#pragma once
/// A model with all that its requests need: host, tools, masks of grammars.

#include "server/grammar/token_mask.h"
#include "server/host/host.h"
#include "server/tools/tool_prompt.h"
#include "server/types.h"

#include <lca/context.h>
#include <lca/model.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace lca::server {

/// The message that a client makes of the events of a job's first choice, whose text is `text`:
/// with the calls it was told of, and nothing of what was written after the only call that was
/// wanted.
Message reply_message(ToolFormat format, const Job& job, const std::string& text);

/// Whether a reply, or its calls, must be of a grammar: that is made beside the connections.
bool has_grammar(const Job& job);

class ServedModel {
 public:
  /// `options.hooks` are set here.
  ServedModel(std::string name, std::shared_ptr<const Model> model, int threads,
              HostOptions options);

  const std::string& name() const { return name_; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  /// In force, one per layer.
  const std::vector<Settings>& settings() const { return settings_; }
  /// False for random weights, which have no tokenizer: prompts must be token ids.
  bool reads_text() const;
  EngineHost& host() { return *host_; }
  ToolFormat tool_format() const { return tools_ ? tools_->format() : ToolFormat::none; }

  /// Makes a job ready for the host: its grammar, and how its reply is decoded. Throws ApiException
  /// (400) where the model cannot do what it asks for.
  void prepare(Job& job) const;

 private:
  std::vector<std::int32_t> prompt(const Job& job) const;
  /// The message that a reply's text is.
  Message reply(const Job& job, const std::string& text) const;
  const TokenMask& mask() const;

  std::string name_;
  std::shared_ptr<const Model> model_;
  Tokenizer tokenizer_;
  std::vector<Settings> settings_;
  std::optional<ToolPrompt> tools_;
  mutable std::once_flag mask_once_;
  mutable std::unique_ptr<TokenMask> mask_;
  Context context_;
  std::unique_ptr<EngineHost> host_;
};

}  // namespace lca::server
