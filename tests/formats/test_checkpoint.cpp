#include "byte_files.h"
#include "formats/checkpoint.h"
#include "formats/checkpoint_json.h"
#include "formats/gguf/gguf_bytes.h"
#include "formats/gguf/gguf_names.h"
#include "support/test_data.h"

namespace lca {
namespace {

using test::expect_error;
using test::FileBuilder;
using test::GgufBuilder;
using test::ScratchFolder;
using test::write_file;

constexpr std::string_view kLlamaConfig = R"({
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "vocab_size": 6, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
  "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"})";

constexpr std::string_view kDeepseekConfig = R"({
  "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 8,
  "intermediate_size": 12, "moe_intermediate_size": 4, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 3,
  "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
  "kv_lora_rank": 4, "q_lora_rank": null, "qk_rope_head_dim": 2, "qk_nope_head_dim": 2,
  "v_head_dim": 2, "vocab_size": 6, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "topk_method": "greedy", "norm_topk_prob": false,
  "routed_scaling_factor": 1.0, "hidden_act": "silu", "tie_word_embeddings": false})";

FileBuilder llama_weights() {
  FileBuilder file;
  file.add("model.embed_tokens.weight", "BF16", {6, 8})
      .add("model.norm.weight", "F32", {8})
      .add("lm_head.weight", "F16", {6, 8});
  return file;
}

void write_llama(const ScratchFolder& folder) {
  write_file(folder / "config.json", kLlamaConfig);
  write_file(folder / "model.safetensors", llama_weights().bytes());
}

float first_value(const StoredTensor& tensor) {
  std::vector<float> values(256);
  unpack_f32(tensor.type, tensor.data, values.data(), packed_type_info(tensor.type).block_values);
  return values[0];
}

void expect_open_fails(const std::filesystem::path& path, const std::vector<std::string>& parts,
                       ErrorKind kind = ErrorKind::bad_input) {
  expect_error([&] { Checkpoint::open(path); }, parts, kind);
}

// --- Hugging Face folders ------------------------------------------------------------------------

TEST(Checkpoint, OpensAFolderWithOneFile) {
  const ScratchFolder folder;
  write_llama(folder);
  const Checkpoint model = Checkpoint::open(folder.path());
  EXPECT_EQ(model.kind(), Checkpoint::Kind::huggingface);
  EXPECT_TRUE(model.path().is_absolute());
  EXPECT_EQ(model.config().architecture, Architecture::llama);
  EXPECT_EQ(model.config().rope.layout, RopeLayout::halves);
  EXPECT_FALSE(model.config().tied);
  EXPECT_FALSE(model.permuted_qk());
  ASSERT_EQ(model.tensors().size(), 3u);
  EXPECT_EQ(model.tensors()[0].name, "lm_head.weight");
  const auto embedding = model.find("model.embed_tokens.weight");
  ASSERT_TRUE(embedding.has_value());
  EXPECT_EQ(embedding->type, PackedType::bf16);
  EXPECT_EQ(embedding->shape, (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(embedding->values(), 48);
  EXPECT_EQ(embedding->bytes(), 96u);
  EXPECT_FALSE(model.find("model.layers.0.mlp.up_proj.weight").has_value());
  EXPECT_EQ(model.end_tokens(), std::vector<std::int32_t>{2});
  EXPECT_EQ(model.chat_template(), "");
}

TEST(Checkpoint, WithoutAHeadIsTiedUnlessTheConfigSaysNot) {
  const ScratchFolder folder;
  write_llama(folder);
  write_file(folder / "model.safetensors", llama_weights().remove("lm_head.weight").bytes());
  expect_open_fails(folder.path(), {"config.json: tie_word_embeddings is false", "lm_head.weight"});
  const std::string field = "\"tie_word_embeddings\": false";
  for (const char* instead : {"\"tie_word_embeddings\": true", "\"pad_token_id\": null",
                              "\"tie_word_embeddings\": null"}) {
    std::string config(kLlamaConfig);
    config.replace(config.find(field), field.size(), instead);
    write_file(folder / "config.json", config);
    EXPECT_TRUE(Checkpoint::open(folder.path()).config().tied) << instead;
  }
}

TEST(Checkpoint, OpensShardsByTheirIndex) {
  const ScratchFolder folder;
  write_file(folder / "config.json", kLlamaConfig);
  write_file(folder / "model-00001-of-00002.safetensors",
             FileBuilder().add("model.embed_tokens.weight", "F32", {6, 8}, {7}).bytes());
  write_file(folder / "model-00002-of-00002.safetensors",
             FileBuilder().add("lm_head.weight", "F32", {6, 8}, {9}).bytes());
  const auto index = [&](std::string_view map) {
    write_file(folder / "model.safetensors.index.json",
               R"({"metadata": {"total_size": 384, "x": [{"weight_map": 1}]}, "weight_map": )" +
                   std::string(map) + "}");
  };
  index(R"({"model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            "lm_head.weight": "model-00002-of-00002.safetensors"})");
  const Checkpoint model = Checkpoint::open(folder.path());
  EXPECT_EQ(model.tensors().size(), 2u);
  EXPECT_EQ(first_value(*model.find("model.embed_tokens.weight")), 7);
  EXPECT_EQ(first_value(*model.find("lm_head.weight")), 9);

  index(R"({"lm_head.weight": "model-00001-of-00002.safetensors"})");
  expect_open_fails(folder.path(), {"model-00001-of-00002.safetensors: tensor \"lm_head.weight\" "
                                    "is not there"});
  index(R"({"lm_head.weight": "model-00003-of-00003.safetensors"})");
  expect_open_fails(folder.path(), {"model-00003-of-00003.safetensors: is missing", "download"},
                    ErrorKind::not_found);
  for (const char* name : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\u0000b"}) {
    index(R"({"lm_head.weight": ")" + std::string(name) + "\"}");
    expect_open_fails(folder.path(), {"model.safetensors.index.json: weight_map", "plain file"});
  }
  index(R"({"a": 1})");
  expect_open_fails(folder.path(), {"weight_map: \"a\" is 1"});
  index(R"({"a": {}})");
  expect_open_fails(folder.path(), {"weight_map: \"a\" is an object"});
  index(R"([])");
  expect_open_fails(folder.path(), {"weight_map is missing"});
  index(R"({"lm_head.weight": "m", "lm_head.weight": "m"})");
  expect_open_fails(folder.path(), {"\"lm_head.weight\" is there twice"});
  write_file(folder / "model.safetensors.index.json", "{");
  expect_open_fails(folder.path(), {"model.safetensors.index.json: "});
  write_file(folder / "model.safetensors", llama_weights().bytes());  // goes first
  EXPECT_EQ(Checkpoint::open(folder.path()).tensors().size(), 3u);
}

TEST(Checkpoint, RefusesATensorOfAnotherTypeOnlyWhenAskedForIt) {
  const ScratchFolder folder;
  write_llama(folder);
  write_file(folder / "model.safetensors", llama_weights().add("buffer", "I64", {2}).bytes());
  const Checkpoint model = Checkpoint::open(folder.path());
  EXPECT_EQ(model.tensors().size(), 3u);
  expect_error([&] { model.find("buffer"); },
               {"model.safetensors: tensor \"buffer\" is I64", "F32, F16 or BF16"});
}

TEST(Checkpoint, FindsExpertsOneByOneOrStacked) {
  const ScratchFolder folder;
  write_file(folder / "config.json", kDeepseekConfig);
  const std::string layer = "model.layers.1.mlp.experts.";
  write_file(folder / "model.safetensors", FileBuilder()
                                               .add("lm_head.weight", "F32", {6, 8})
                                               .add(layer + "2.up_proj.weight", "F32", {4, 8}, {5})
                                               .bytes());
  EXPECT_EQ(first_value(*Checkpoint::open(folder.path()).find(layer + "2.up_proj.weight")), 5);

  write_file(folder / "model.safetensors", FileBuilder()
                                               .add("lm_head.weight", "F32", {6, 8})
                                               .add(layer + "gate_up_proj", "F32", {3, 8, 8})
                                               .add(layer + "down_proj", "F32", {3, 8, 4})
                                               .bytes());
  const Checkpoint model = Checkpoint::open(folder.path());
  EXPECT_EQ(first_value(*model.find(layer + "2.gate_proj.weight")), 128);
  EXPECT_EQ(first_value(*model.find(layer + "2.up_proj.weight")), 160);
  const auto down = model.find(layer + "1.down_proj.weight");
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(first_value(*down), 32);
  EXPECT_EQ(down->shape, (std::vector<std::int64_t>{8, 4}));
  EXPECT_FALSE(model.find(layer + "1.other.weight").has_value());
  EXPECT_FALSE(model.find(layer + "x.up_proj.weight").has_value());
  EXPECT_FALSE(model.find(".mlp.experts.weight").has_value());
  expect_error([&] { model.find(layer + "3.up_proj.weight"); }, {"holds no expert 3"});

  write_file(folder / "model.safetensors", FileBuilder()
                                               .add("lm_head.weight", "F32", {6, 8})
                                               .add(layer + "gate_up_proj", "F32", {3, 2, 8})
                                               .bytes());
  const Checkpoint odd = Checkpoint::open(folder.path());
  expect_error([&] { odd.find(layer + "0.up_proj.weight"); }, {"has shape [3,2,8], not [3,8,8]"});
}

TEST(Checkpoint, SaysWhatAFolderLacks) {
  const ScratchFolder folder;
  expect_open_fails(folder / "absent", {"absent: there is no such file or folder"},
                    ErrorKind::not_found);
  expect_open_fails(folder.path(), {"neither config.json nor a .gguf file"}, ErrorKind::not_found);
  write_file(folder / "config.json", kLlamaConfig);
  expect_open_fails(folder.path(), {"neither model.safetensors nor model.safetensors.index.json"},
                    ErrorKind::not_found);
  write_file(folder / "pytorch_model.bin", "PK");
  expect_open_fails(folder.path(),
                    {"pytorch_model.bin: only safetensors are read", "save_pretrained"});
  write_file(folder / "model.safetensors", "");
  expect_open_fails(folder.path(), {"model.safetensors: "});
  expect_open_fails(folder / "config.json", {"config.json: is no GGUF file", "name the folder"});
  write_file(folder / "config.json", "[]");
  expect_open_fails(folder.path(), {"config.json: "});
}

TEST(Checkpoint, SaysHowToGetATokenizer) {
  const ScratchFolder folder;
  write_llama(folder);
  const Checkpoint model = Checkpoint::open(folder.path());
  expect_error([&] { model.tokenizer(); }, {"tokenizer.json: is missing: the model has no"},
               ErrorKind::not_found);
  write_file(folder / "tokenizer.model", "x");
  expect_error([&] { model.tokenizer(); },
               {"tokenizer.json: is missing; tokenizer.model alone is not read", "AutoTokenizer"},
               ErrorKind::not_found);
  write_file(folder / "tokenizer.json", "nonsense");
  expect_error([&] { model.tokenizer(); }, {"tokenizer.json"});
}

TEST(Checkpoint, TakesTheChatTemplateFromWhereItIs) {
  const ScratchFolder folder;
  write_llama(folder);
  const Checkpoint model = Checkpoint::open(folder.path());
  write_file(folder / "tokenizer_config.json", R"({"a": {"chat_template": "no"},
      "chat_template": "plain"})");
  EXPECT_EQ(model.chat_template(), "plain");
  write_file(folder / "tokenizer_config.json", R"({"chat_template": [
      {"name": "tool_use", "template": "tools"}, {"template": "usual", "name": "default"}]})");
  EXPECT_EQ(model.chat_template(), "usual");
  write_file(folder / "chat_template.jinja", "own file\n");
  EXPECT_EQ(model.chat_template(), "own file\n");
}

TEST(Checkpoint, RefusesChatTemplatesOfAnotherForm) {
  EXPECT_EQ(chat_template_from_json("{}", "t"), "");
  EXPECT_EQ(chat_template_from_json(R"({"chat_template": null})", "t"), "");
  EXPECT_EQ(chat_template_from_json(R"({"chat_template": []})", "t"), "");
  for (const char* value :
       {"1", "{}", "[1]", "[[]]", R"(["x"])", R"([{"name": 1}])", R"([{"name": {}}])"}) {
    const std::string text = R"({"chat_template": )" + std::string(value) + "}";
    expect_error([&] { chat_template_from_json(text, "t.json"); },
                 {"t.json: chat_template cannot be "});
  }
  expect_error([] { chat_template_from_json("[]", "t.json"); }, {"t.json: is a list, not an"});
  expect_error([] { chat_template_from_json("7", "t.json"); }, {"t.json: is 7, not an object"});
  expect_error([] { chat_template_from_json("{", "t.json"); }, {"t.json: "});
}

TEST(Checkpoint, JoinsEndTokensOfBothFiles) {
  const ScratchFolder folder;
  write_llama(folder);
  const Checkpoint model = Checkpoint::open(folder.path());
  write_file(folder / "generation_config.json", R"({"eos_token_id": [3, 2, 3], "x": {"y": [1]}})");
  EXPECT_EQ(model.end_tokens(), (std::vector<std::int32_t>{2, 3}));
  write_file(folder / "generation_config.json", R"({"eos_token_id": 5})");
  EXPECT_EQ(model.end_tokens(), (std::vector<std::int32_t>{2, 5}));
  write_file(folder / "generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(model.end_tokens(), (std::vector<std::int32_t>{2}));
  for (const char* value : {"-1", "4294967296", "\"2\"", "[null]", "[[1]]", "{}", "1.5"}) {
    write_file(folder / "generation_config.json",
               R"({"eos_token_id": )" + std::string(value) + "}");
    expect_error([&] { model.end_tokens(); }, {"generation_config.json: eos_token_id cannot be "});
  }
}

// --- GGUF ----------------------------------------------------------------------------------------

TEST(Checkpoint, OpensGgufUnderHuggingFacesNames) {
  const ScratchFolder folder;
  GgufBuilder file = test::gguf_llama();
  file.text("tokenizer.chat_template", "{{ x }}").integer("tokenizer.ggml.eos_token_id", 4);
  write_file(folder / "m.gguf", file.bytes());
  const Checkpoint model = Checkpoint::open(folder / "m.gguf");
  EXPECT_EQ(model.kind(), Checkpoint::Kind::gguf);
  EXPECT_TRUE(model.permuted_qk());
  EXPECT_EQ(model.tensors().size(), 4u);
  const auto q = model.find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_TRUE(q.has_value());
  EXPECT_EQ(q->name, "blk.0.attn_q.weight");
  EXPECT_EQ(q->shape, (std::vector<std::int64_t>{64, 64}));
  EXPECT_EQ(q->bytes(), 64u * 36u);
  EXPECT_TRUE(model.find("model.norm.weight").has_value());
  EXPECT_FALSE(model.find("lm_head.weight").has_value());
  EXPECT_FALSE(model.find("blk.0.attn_q.weight").has_value());
  EXPECT_FALSE(model.find("model.layers.x.self_attn.q_proj.weight").has_value());
  EXPECT_FALSE(model.find("model.layers.-1.self_attn.q_proj.weight").has_value());
  EXPECT_EQ(model.chat_template(), "{{ x }}");
  EXPECT_EQ(model.end_tokens(), std::vector<std::int32_t>{4});
  expect_error([&] { model.tokenizer(); }, {"m.gguf: key \"tokenizer.ggml.model\" is missing"});
}

TEST(Checkpoint, OpensTheOneGgufInAFolder) {
  const ScratchFolder folder;
  write_file(folder / "m.gguf", test::gguf_llama().bytes());
  write_file(folder / "README.md", "");
  EXPECT_EQ(Checkpoint::open(folder.path()).path(), folder / "m.gguf");
  write_file(folder / "n.gguf", test::gguf_llama().bytes());
  expect_open_fails(folder.path(), {"holds several models, m.gguf and n.gguf"});
}

TEST(Checkpoint, OpensTheOneSetOfPartsInAFolder) {
  const ScratchFolder folder;
  const auto part = [](GgufBuilder file, std::uint16_t number) {
    file.raw_value("split.no", test::GgufType::u16, test::raw(number))
        .raw_value("split.count", test::GgufType::u16, test::raw<std::uint16_t>(2));
    return file.bytes();
  };
  write_file(folder / "m-00001-of-00002.gguf", part(test::gguf_llama(), 0));
  GgufBuilder second;
  second.tensor("output.weight", PackedType::f32, {6, 64});
  write_file(folder / "m-00002-of-00002.gguf", part(second, 1));
  const Checkpoint model = Checkpoint::open(folder.path());
  EXPECT_FALSE(model.config().tied);
  EXPECT_TRUE(model.find("lm_head.weight").has_value());
}

TEST(Checkpoint, CutsExpertsAndSplitProjectionsOutOfGguf) {
  const ScratchFolder folder;
  GgufBuilder file = test::gguf_deepseek();
  std::string stack;
  for (int i = 0; i < 4 * 32 * 64; ++i) stack += test::raw(static_cast<float>(i));
  file.tensor("blk.1.ffn_up_exps.weight", PackedType::f32, {4, 32, 64}, stack)
      .tensor("blk.1.ffn_down_exps.weight", PackedType::q8_0, {4, 64, 32})
      .tensor("blk.0.ffn_gate_up_exps.weight", PackedType::f32, {4, 32, 64}, stack)
      .tensor("blk.1.ffn_gate_exps.weight", PackedType::f32, {64})
      .tensor("blk.1.ffn_gate_inp.weight", PackedType::f32, {4, 64})
      .tensor("blk.1.attn_k_b.weight", PackedType::q8_0, {16, 512, 128})
      .tensor("blk.1.attn_v_b.weight", PackedType::q8_0, {16, 128, 512});
  write_file(folder / "m.gguf", file.bytes());
  const Checkpoint model = Checkpoint::open(folder / "m.gguf");
  EXPECT_FALSE(model.permuted_qk());
  const std::string layer = "model.layers.1.";
  const auto up = model.find(layer + "mlp.experts.3.up_proj.weight");
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->shape, (std::vector<std::int64_t>{32, 64}));
  EXPECT_EQ(first_value(*up), 3 * 32 * 64);
  const auto down = model.find(layer + "mlp.experts.1.down_proj.weight");
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(down->shape, (std::vector<std::int64_t>{64, 32}));
  EXPECT_EQ(down->data - model.find(layer + "mlp.experts.0.down_proj.weight")->data, 64 * 34);
  EXPECT_EQ(first_value(*model.find("model.layers.0.mlp.experts.1.gate_proj.weight")), 2048);
  EXPECT_EQ(first_value(*model.find("model.layers.0.mlp.experts.1.up_proj.weight")), 3072);
  EXPECT_FALSE(model.find("model.layers.0.mlp.experts.1.down_proj.weight").has_value());
  EXPECT_EQ(model.find(layer + "mlp.gate.weight")->shape, (std::vector<std::int64_t>{4, 64}));
  EXPECT_EQ(model.find(layer + "self_attn.k_b_proj.weight")->shape,
            (std::vector<std::int64_t>{16, 512, 128}));
  EXPECT_EQ(model.find(layer + "self_attn.v_b_proj.weight")->shape,
            (std::vector<std::int64_t>{16, 128, 512}));
  expect_error([&] { model.find(layer + "mlp.experts.4.up_proj.weight"); },
               {"m.gguf: tensor \"blk.1.ffn_up_exps.weight\"", "holds no expert 4"});
  expect_error([&] { model.find(layer + "mlp.experts.0.gate_proj.weight"); },
               {"has shape [64], which holds no expert 0"});
}

TEST(GgufNames, AreThoseOfHuggingFace) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"lm_head.weight", "output.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"model.layers.12.input_layernorm.weight", "blk.12.attn_norm.weight"},
      {"model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"},
      {"model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias"},
      {"model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight"},
      {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"},
      {"model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"},
      {"model.layers.0.self_attn.q_a_proj.weight", "blk.0.attn_q_a.weight"},
      {"model.layers.0.self_attn.q_a_layernorm.weight", "blk.0.attn_q_a_norm.weight"},
      {"model.layers.0.self_attn.q_b_proj.weight", "blk.0.attn_q_b.weight"},
      {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "blk.0.attn_kv_a_mqa.weight"},
      {"model.layers.0.self_attn.kv_a_layernorm.weight", "blk.0.attn_kv_a_norm.weight"},
      {"model.layers.0.self_attn.kv_b_proj.weight", "blk.0.attn_kv_b.weight"},
      {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"},
      {"model.layers.0.mlp.down_proj.bias", "blk.0.ffn_down.bias"},
      {"model.layers.0.mlp.gate.weight", "blk.0.ffn_gate_inp.weight"},
      {"model.layers.0.mlp.shared_experts.up_proj.weight", "blk.0.ffn_up_shexp.weight"}};
  for (const auto& [hf, gguf] : names) {
    EXPECT_EQ(gguf_name_from_hf(hf), (GgufName{gguf, {}})) << hf;
  }
  EXPECT_EQ(gguf_name_from_hf("model.layers.1.mlp.experts.63.down_proj.weight"),
            (GgufName{"blk.1.ffn_down_exps.weight", 63}));
  for (const char* none : {"", ".weight", "model.layers.1", "model.layers.1.weight", "x.weight",
                           "model.layers.1.mlp.experts.weight", "model.embed_tokens"}) {
    EXPECT_FALSE(gguf_name_from_hf(none).has_value()) << none;
  }
}

TEST(Checkpoint, PermutedRowsPairNeighbours) {
  // Hugging Face rotates row i with row i + 4 of 8; GGUF's llama stores the two side by side.
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(permuted_row(i, 8), 2 * i);
    EXPECT_EQ(permuted_row(i + 4, 8), 2 * i + 1);
  }
}

TEST(Checkpoint, HasEveryTensorOfTheRealModel) {
  const auto path = test::smollm2_path();
  if (!path) GTEST_SKIP() << "SmolLM2-135M-Instruct.Q4_1.gguf is not in $LCA_HOME or ~/.cache/lca";
  const Checkpoint model = Checkpoint::open(*path);
  std::size_t found = 0;
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) {
    found += model.find(name).has_value();
  }
  for (int layer = 0; layer < 30; ++layer) {
    for (const char* name : {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj",
                             "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      found +=
          model.find("model.layers." + std::to_string(layer) + "." + name + ".weight").has_value();
    }
  }
  EXPECT_EQ(found, model.tensors().size());
  EXPECT_EQ(model.end_tokens(), std::vector<std::int32_t>{2});
  EXPECT_NE(model.chat_template().find("<|im_start|>"), std::string::npos);
  EXPECT_EQ(model.tokenizer().size(), 49152);
}

}  // namespace
}  // namespace lca
