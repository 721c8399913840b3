#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "server/page/page.h"

namespace lca::server {
namespace {

std::string header_of(const PageAnswer& answer, std::string_view name) {
  for (const auto& [key, value] : answer.headers) {
    if (key == name) return std::string(value);
  }
  return "";
}

TEST(PageFiles, EveryFileIsServedByteForByte) {
  ASSERT_GE(page_files().size(), 10U);
  for (const PageFile& file : page_files()) {
    std::ifstream stream(std::string(LCA_SOURCE_DIR "/src/server/page/") + std::string(file.name),
                         std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    ASSERT_FALSE(bytes.empty()) << file.name;
    const auto answer = page_answer("/page/" + std::string(file.name), "");
    ASSERT_TRUE(answer) << file.name;
    EXPECT_EQ(answer->status, 200);
    EXPECT_TRUE(answer->body == bytes) << file.name;
  }
}

TEST(PageFiles, TheRootIsThePage) {
  for (const char* path : {"/", "/index.html", "/page/index.html"}) {
    const auto answer = page_answer(path, "");
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->content_type, "text/html; charset=utf-8");
    EXPECT_TRUE(answer->body.starts_with("<!doctype html>"));
  }
  EXPECT_EQ(page_answer("/page/app.js", "")->content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(page_answer("/page/style.css", "")->content_type, "text/css; charset=utf-8");
  EXPECT_EQ(page_answer("/page/icon.svg", "")->content_type, "image/svg+xml");
}

TEST(PageFiles, OtherPathsAreNotThePages) {
  for (const char* path :
       {"", "/page", "/page/", "/page/none.js", "/page/headers.txt", "/page/page.cpp",
        "/page/../page/app.js", "/app.js", "/v1/models", "//"}) {
    EXPECT_FALSE(page_answer(path, "")) << path;
  }
}

TEST(PageFiles, AKnownEtagIsNotSentAgain) {
  const std::string etag = header_of(*page_answer("/page/app.js", ""), "ETag");
  ASSERT_EQ(etag.size(), 34U) << etag;
  EXPECT_EQ(etag.find_first_not_of("0123456789abcdef", 1), 33U) << etag;
  EXPECT_NE(etag, header_of(*page_answer("/page/style.css", ""), "ETag"));
  for (const std::string& known :
       {etag, "W/" + etag, "\"other\", " + etag, std::string("*"), etag + " ,\"x\""}) {
    const auto answer = page_answer("/page/app.js", known);
    EXPECT_EQ(answer->status, 304) << known;
    EXPECT_TRUE(answer->body.empty());
    EXPECT_EQ(header_of(*answer, "ETag"), etag);
  }
  for (const char* unknown : {"\"other\"", "", ",", " , ,", "W/", "\""}) {
    EXPECT_EQ(page_answer("/page/app.js", unknown)->status, 200) << unknown;
  }
}

TEST(PageFiles, EveryAnswerCarriesAStrictPolicy) {
  for (const PageFile& file : page_files()) {
    const auto answer = page_answer("/page/" + std::string(file.name), file.etag);
    const std::string policy = header_of(*answer, "Content-Security-Policy");
    EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_EQ(policy.find('*'), std::string::npos);
    EXPECT_EQ(header_of(*answer, "X-Content-Type-Options"), "nosniff");
    for (const auto& [name, value] : answer->headers) {
      EXPECT_EQ(name.find_first_of("\r\n: "), std::string_view::npos) << name;
      EXPECT_EQ(value.find_first_of("\r\n"), std::string_view::npos) << value;
    }
  }
}

TEST(PageFiles, WhatAFileNamesIsThere) {
  int found = 0;
  for (const PageFile& file : page_files()) {
    for (const std::string_view begin : {"\"./", "\"/page/"}) {
      std::size_t at = 0;
      while ((at = file.bytes.find(begin, at)) != std::string_view::npos) {
        at += begin.size();
        const std::string name(file.bytes.substr(at, file.bytes.find('"', at) - at));
        EXPECT_TRUE(page_answer("/page/" + name, "")) << file.name << " names " << name;
        ++found;
      }
    }
  }
  EXPECT_GE(found, 10);
}

TEST(PageFiles, NothingIsFetchedFromElsewhere) {
  const std::string_view svg = "http://www.w3.org/2000/svg";  // a name, not an address
  for (const PageFile& file : page_files()) {
    std::string text(file.bytes);
    if (const std::size_t at = text.find(svg); at != std::string::npos) text.erase(at, svg.size());
    for (const char* other : {"://", "\"//", "'//", "(//", "@import"}) {
      EXPECT_EQ(text.find(other), std::string::npos) << file.name << " has " << other;
    }
  }
}

}  // namespace
}  // namespace lca::server
