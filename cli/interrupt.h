// Ctrl-C and SIGTERM. The handler only sets a flag; long work looks at it and leaves in order.
// Should one kernel call take longer than the grace time, an alarm ends the process: nothing is
// ever written before the end of a run, so no file can be left half done.
#pragma once

#include <cstdint>
#include <string>

namespace linestate::cli {

inline constexpr int kInterruptedExitCode = 130;
inline constexpr unsigned kInterruptGraceSeconds = 3;

void install_interrupt_handlers();
bool interrupted();

/// What the message says.
void set_interrupt_progress(int64_t requests_done, int64_t requests_total);
/// "interrupted after 3 of 20 requests; nothing was written".
std::string interrupt_message();

}  // namespace linestate::cli
