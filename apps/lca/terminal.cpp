#include "terminal.h"

#include "core/error.h"
#include "interrupt.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace lca::cli {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

bool is_terminal(int descriptor) {
  if (::isatty(descriptor) != 1) return false;
  const char* kind = std::getenv("TERM");
  return kind != nullptr && std::string_view(kind) != "dumb";
}

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

/// Progress is a courtesy: where it cannot be written it is dropped.
void write_stderr(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, text_width(text)), ' ');
  return left ? text + space : space + text;
}

std::string time_left(double seconds) {
  const auto whole = static_cast<long>(std::lround(std::min(seconds, 359999.0)));
  if (whole < 60) return fmt::format("{} s left", whole);
  if (whole < 3600) return fmt::format("{}:{:02} left", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h left", whole / 3600, whole % 3600 / 60);
}

}  // namespace

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EPIPE) {
      throw OutputClosed{};
    } else if (errno == EAGAIN) {
      pollfd room{STDOUT_FILENO, POLLOUT, 0};  // somebody made the terminal non-blocking
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      fail_io("standard output cannot be written: {}", std::generic_category().message(errno));
    }
  }
}

void print_note(std::string_view line) { write_stderr(fmt::format("{}\n", line)); }

bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) == 1; }
bool stdout_is_terminal() { return is_terminal(STDOUT_FILENO); }
bool stderr_is_terminal() { return is_terminal(STDERR_FILENO); }

std::size_t text_width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

std::string terminal_safe(std::string_view text) {
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xc2 && i + 1 < text.size() &&
                    static_cast<unsigned char>(text[i + 1]) < 0xa0;  // U+0080 … U+009F
    if (c1) {
      ++i;
    } else if ((byte >= 0x20 && byte != 0x7f) || byte == '\n' || byte == '\t') {
      safe += text[i];
    }
  }
  return safe;
}

std::string number_text(double value) {
  const double size = std::fabs(value);
  if (size >= 99.95) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.9995 || size == 0) return fmt::format("{:.2f}", value);
  if (size >= 0.001) return fmt::format("{:.3f}", value);
  return fmt::format("{:.1e}", value);
}

std::string bytes_text(double bytes) { return bytes_text(bytes, bytes); }

std::string bytes_text(double bytes, double like) {
  static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (like < 1024 || bytes == 0) return fmt::format("{:.0f} B", bytes);
  std::size_t unit = 0;
  double size = 1024;
  for (; like / size >= 1023.5 && unit + 1 < kUnits.size(); size *= 1024) ++unit;
  return fmt::format("{} {}", number_text(bytes / size), kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 0.9995e-3) return fmt::format("{} µs", number_text(seconds * 1e6));
  if (seconds < 0.9995) return fmt::format("{} ms", number_text(seconds * 1e3));
  return fmt::format("{} s", number_text(seconds));
}

std::string count_text(std::int64_t count) {
  std::string text = fmt::format("{}", count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string length_text(std::int64_t length) {
  constexpr std::int64_t kilo = 1024;
  constexpr std::int64_t giga = kilo * kilo * kilo;
  if (length > 0 && length % giga == 0) return fmt::format("{}G", length / giga);
  if (length > 0 && length % (kilo * kilo) == 0) return fmt::format("{}M", length / kilo / kilo);
  if (length > 0 && length % kilo == 0) return fmt::format("{}K", length / kilo);
  return fmt::format("{}", length);
}

std::string Table::text() const {
  std::vector<std::size_t> widths(rows_.front().size(), 3);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], text_width(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += (i == 0 ? "| " : " ") + padded(row[i], widths[i], i == 0) + " |";
    }
    text += '\n';
    if (&row != &rows_.front()) continue;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string dashes(widths[i] - 1, '-');
      text += i == 0 ? "| " + dashes + "- |" : " " + dashes + ": |";
    }
    text += '\n';
  }
  return text;
}

Progress::Progress(double work)
    : total_(std::max(work, 1e-9)), begin_(Clock::now()), step_begin_(begin_) {
  if (stderr_is_terminal()) painter_ = std::thread([this] { loop(); });
}

Progress::~Progress() { done(); }

void Progress::step(std::string label, double work) {
  const std::lock_guard lock(mutex_);
  finished_ += current_;
  current_ = work;
  label_ = std::move(label);
  step_begin_ = Clock::now();
}

void Progress::reached(double work, std::string label) {
  const std::lock_guard lock(mutex_);
  current_ = std::max(0.0, std::min(work - finished_, total_ - work));  // the next as the last
  finished_ = work;
  label_ = std::move(label);
  step_begin_ = Clock::now();
}

void Progress::note(std::string_view text) {
  if (!painter_.joinable()) return;
  const std::lock_guard lock(mutex_);
  write_stderr(fmt::format("{}{}\n", shown_ ? kClearLine : "", text));
}

void Progress::done() {
  if (!painter_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  painter_.join();
  if (shown_) write_stderr(kClearLine);
  shown_ = false;
  interrupt_line_open(false);
}

void Progress::loop() {
  std::unique_lock lock(mutex_);
  auto pause = std::chrono::milliseconds(500);
  while (!wake_.wait_for(lock, pause, [this] { return stop_; })) {
    shown_ = true;
    interrupt_line_open(true);
    write_stderr(fmt::format("{}{}", kClearLine, line(Clock::now())));
    pause = std::chrono::milliseconds(250);
  }
}

std::string Progress::line(Clock::time_point now) const {
  const auto seconds = [](Clock::duration span) {
    return std::chrono::duration<double>(span).count();
  };
  // A step reports nothing while it runs, so the bar moves on at the pace so far.
  const double before = seconds(step_begin_ - begin_);
  const double pace = before > 0.05 && finished_ > 0 ? finished_ / before : 0;
  const double running = std::min(0.95 * current_, pace * seconds(now - step_begin_));
  const double share = std::clamp((finished_ + running) / total_, 0.0, 1.0);

  const std::string tail =
      fmt::format(" {:3.0f} %  {}", share * 100,
                  share > 0.01 ? time_left(seconds(now - begin_) * (1 - share) / share) : "");
  const std::size_t columns = terminal_columns();
  const std::size_t used = text_width(label_) + text_width(tail) + 4;
  if (columns < used + 4) return label_ + tail;
  const std::size_t width = std::min<std::size_t>(columns - used, 40);
  const auto full = static_cast<std::size_t>(std::lround(share * static_cast<double>(width)));
  std::string bar;
  for (std::size_t i = 0; i < width; ++i) bar += i < full ? "█" : "░";
  return fmt::format("{}  {} {}", label_, bar, tail);
}

}  // namespace lca::cli
