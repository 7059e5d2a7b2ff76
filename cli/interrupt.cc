#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>

namespace linestate::cli {
namespace {

std::atomic<bool> g_interrupted{false};
std::atomic<int64_t> g_done{0};
std::atomic<int64_t> g_total{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

void on_interrupt(int) {
  if (!g_interrupted.exchange(true)) alarm(kInterruptGraceSeconds);
}

// Only what a signal handler may do: no allocation, no stdio.
struct RawText {
  char data[160];
  size_t size = 0;

  void add(const char* text) {
    while (*text != '\0' && size < sizeof(data)) data[size++] = *text++;
  }
  void add(int64_t number) {
    char digits[24];
    size_t n = 0;
    do {
      digits[n++] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0 && n < sizeof(digits));
    while (n > 0 && size < sizeof(data)) data[size++] = digits[--n];
  }
};

RawText message_text() {
  RawText text;
  text.add("interrupted after ");
  text.add(g_done.load());
  text.add(" of ");
  text.add(g_total.load());
  text.add(" requests; nothing was written");
  return text;
}

void on_alarm(int) {
  RawText line;
  line.add("linestate: ");
  const RawText message = message_text();
  for (size_t i = 0; i < message.size && line.size < sizeof(line.data); ++i) {
    line.data[line.size++] = message.data[i];
  }
  line.add("\n");
  // Nothing can be done about a message that does not go out.
  if (write(STDERR_FILENO, line.data, line.size) < 0) _exit(kInterruptedExitCode);
  _exit(kInterruptedExitCode);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void install_interrupt_handlers() {
  handle(SIGINT, on_interrupt);
  handle(SIGTERM, on_interrupt);
  handle(SIGALRM, on_alarm);
}

bool interrupted() { return g_interrupted.load(std::memory_order_relaxed); }

void set_interrupt_progress(int64_t requests_done, int64_t requests_total) {
  g_done.store(requests_done);
  g_total.store(requests_total);
}

std::string interrupt_message() {
  const RawText text = message_text();
  return std::string(text.data, text.size);
}

}  // namespace linestate::cli
