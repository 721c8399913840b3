#include "core/text.h"

#include <gtest/gtest.h>

namespace lca {
namespace {

TEST(PrintableText, LeavesOrdinaryAndForeignTextAlone) {
  EXPECT_EQ(text_printable("k_rope"), "k_rope");
  EXPECT_EQ(text_printable("größe – 長さ 🙂"), "größe – 長さ 🙂");
  EXPECT_EQ(text_printable(""), "");
}

TEST(PrintableText, EscapesWhatBreaksALineOrATerminal) {
  EXPECT_EQ(text_printable("a\nb\r\t"), "a\\x0ab\\x0d\\x09");
  EXPECT_EQ(text_printable("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(text_printable(std::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(text_printable("\xc2\x85"), "\\x85");            // next line
  EXPECT_EQ(text_printable("\xe2\x80\xa8"), "\\u2028");      // line separator
  EXPECT_EQ(text_printable("x\xe2\x80\xaey"), "x\\u202ey");  // right-to-left override
}

TEST(PrintableText, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(text_printable("\xff"), "\\xff");
  EXPECT_EQ(text_printable("a\xc3"), "a\\xc3");                           // cut short
  EXPECT_EQ(text_printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(text_printable("\xe0\x80\x80"), "\\xe0\\x80\\x80");           // overlong
  EXPECT_EQ(text_printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half a surrogate pair
  EXPECT_EQ(text_printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
}

TEST(PrintableText, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(text_printable("abcdef", 6), "abcdef");
  EXPECT_EQ(text_printable("abcdefg", 6), "abcdef…");
  EXPECT_EQ(text_printable("abcdé", 5), "abcd…");
  EXPECT_EQ(text_printable("abc\n", 5), "abc…");
  EXPECT_LT(text_printable(std::string(1000000, 'x')).size(), 100u);
}

}  // namespace
}  // namespace lca
