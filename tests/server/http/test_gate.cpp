// Keys, names and addresses. How they act on requests is in test_limits.cpp.

#include "server/http/gate.h"

#include <lca/error.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace lca::server {
namespace {

TEST(Gate, KeysAreEqualOnlyAsAWhole) {
  EXPECT_TRUE(key_equal("secret", "secret"));
  for (const char* other : {"", "s", "secre", "secret ", "Secret", "secretsecret", "secreu"}) {
    EXPECT_FALSE(key_equal(other, "secret")) << other;
  }
  EXPECT_FALSE(key_equal("", ""));
  EXPECT_FALSE(key_equal("a", ""));
}

TEST(Gate, KeysComeFromAValueAFileAndTheEnvironment) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("lca-keys-" + std::to_string(getpid()));
  std::ofstream(file) << "one\n\n  two \r\nthree";
  EXPECT_EQ(keys_collect("zero", file.string(), "four\n"),
            (std::vector<std::string>{"zero", "one", "two", "three", "four"}));
  EXPECT_TRUE(keys_collect("", "", nullptr).empty());
  EXPECT_TRUE(keys_collect("", "", "").empty());
  EXPECT_THROW(keys_collect("has blank", "", nullptr), Error);
  std::ofstream(file) << "\n \n";
  EXPECT_THROW(keys_collect("", file.string(), nullptr), Error) << "a file without a key";
  std::filesystem::remove(file);
  EXPECT_THROW(keys_collect("", file.string(), nullptr), Error);
}

TEST(Gate, AuthoritiesAreParsed) {
  EXPECT_EQ(authority_parse("Example.COM:80")->host, "example.com");
  EXPECT_EQ(authority_parse("example.com.")->host, "example.com");
  EXPECT_EQ(authority_parse("example.com:80")->port, "80");
  EXPECT_EQ(authority_parse("[::1]:8080")->host, "::1");
  EXPECT_EQ(authority_parse("[::1]")->port, "");
  for (const char* bad : {"", ":80", "[]", "[::1", "[::1]x", "a b", "a:b", "a:123456", "user@host",
                          "a/b", ".", "a:80:90"}) {
    EXPECT_FALSE(authority_parse(bad)) << bad;
  }
}

TEST(Gate, LoopbackHasManySpellings) {
  for (const char* host : {"localhost", "LocalHost", "a.localhost", "127.0.0.1", "127.255.0.9",
                           "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(host_is_loopback(host)) << host;
  }
  for (const char* host : {"", "localhost.example", "alocalhost", "128.0.0.1", "127.0.0.1.example",
                           "::2", "0.0.0.0", "::", "127.1.example"}) {
    EXPECT_FALSE(host_is_loopback(host)) << host;
  }
}

TEST(Gate, AddressesBeyondLoopbackNeedAKeyOrConsent) {
  EXPECT_NO_THROW(bind_check("127.0.0.1", false, false));
  EXPECT_NO_THROW(bind_check("::1", false, false));
  EXPECT_THROW(bind_check("0.0.0.0", false, false), Error);
  EXPECT_THROW(bind_check("::", false, false), Error);
  EXPECT_NO_THROW(bind_check("0.0.0.0", true, false));
  EXPECT_NO_THROW(bind_check("0.0.0.0", false, true));
}

}  // namespace
}  // namespace lca::server
