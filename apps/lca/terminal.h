#pragma once
/// What people see: text on standard output, aligned tables, and progress on standard error.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace lca::cli {

/// Thrown when the reader of standard output has gone away: nobody is left to tell.
struct OutputClosed {};

/// Writes to standard output at once. Throws OutputClosed, or Error where the disk is full.
void print(std::string_view text);

/// One whole line to standard error, for people; where it cannot be written it is dropped.
void print_note(std::string_view line);

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

/// `text` without what could move the cursor or change colours: control characters but line ends
/// and tabs are left out. For text that others wrote.
std::string terminal_safe(std::string_view text);

/// Columns a string takes on screen: its code points, which is right for all that we print.
std::size_t text_width(std::string_view text);

/// Three significant digits: 0.125, 1.25, 12.5, 125.
std::string number_text(double value);
/// 512 B, 1.50 KiB, 24.0 GiB.
std::string bytes_text(double bytes);
/// The same in the unit that suits `like`, so that two numbers beside each other compare.
std::string bytes_text(double bytes, double like);
/// 850 µs, 12.5 ms, 3.21 s.
std::string seconds_text(double seconds);
/// 115,262.
std::string count_text(std::int64_t count);
/// 1000, 16K, 1M.
std::string length_text(std::int64_t length);

/// A table in Markdown whose columns also line up in a terminal. The first column is aligned left,
/// the others right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// One line on standard error that says how far a run is and how long it will take. It appears
/// after half a second, and only where standard error is a terminal.
class Progress {
 public:
  /// `work`: the sum of what `step` will be told, in any unit that is roughly proportional to time.
  explicit Progress(double work);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The last step is over; the next is called `label` and is worth `work`.
  void step(std::string label, double work);
  /// So much of the work is done, as the running step itself reports; it goes on as `label`.
  void reached(double work, std::string label);
  /// Prints a line that stays, above the bar.
  void note(std::string_view line);
  /// Removes the bar.
  void done();

 private:
  using Clock = std::chrono::steady_clock;
  void loop();
  std::string line(Clock::time_point now) const;

  double total_;
  double finished_ = 0;
  double current_ = 0;
  std::string label_;
  Clock::time_point begin_;
  Clock::time_point step_begin_;
  bool shown_ = false;
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread painter_;
};

}  // namespace lca::cli
