// A tensor written row by row is the file that one written as a whole would be.

#include "formats/byte_files.h"

#include <gtest/gtest.h>

namespace lca::test {
namespace {

TEST(SafetensorsStream, RowsGiveTheSameFileAsTheWhole) {
  const ScratchFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  {
    FileWriter writer(folder / "whole");
    const TensorInfo tensor{"logits", TensorType::f32, {3, 2}, bytes};
    safetensors_write(writer, {&tensor, 1}, {{"who", "me"}});
    writer.commit();
  }
  {
    FileWriter writer(folder / "rows");
    SafetensorsStream stream(writer, "logits", TensorType::f32, {3, 2}, {{"who", "me"}});
    stream.append(bytes.first(8));
    stream.append({});
    stream.append(bytes.subspan(8));
    stream.finish();
  }
  EXPECT_EQ(read_file(folder / "rows"), read_file(folder / "whole"));
  EXPECT_EQ(Safetensors::open(folder / "rows").find("logits")->shape,
            (std::vector<std::int64_t>{3, 2}));
}

TEST(SafetensorsStream, TooFewAndTooManyBytesLeaveNoFile) {
  const ScratchFolder folder;
  const std::vector<float> values(5);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  {
    FileWriter writer(folder / "few");
    SafetensorsStream stream(writer, "t", TensorType::f32, {2, 3});
    stream.append(bytes);
    expect_error([&] { stream.finish(); }, {"4 bytes"}, ErrorKind::internal);
  }
  {
    FileWriter writer(folder / "many");
    SafetensorsStream stream(writer, "t", TensorType::f32, {2, 2});
    expect_error([&] { stream.append(bytes); }, {"4 bytes more"}, ErrorKind::internal);
  }
  {
    FileWriter writer(folder / "huge");
    expect_error(
        [&] {
          SafetensorsStream(writer, "t", TensorType::f32,
                            {std::int64_t{1} << 62, std::int64_t{1} << 62});
        },
        {"too large"}, ErrorKind::internal);
  }
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace lca::test
