// `linestate info`: version, build, devices, kernel tables and model presets.
#pragma once

namespace linestate::cli {

/// Prints on stdout. Returns the exit code.
int run_info();

}  // namespace linestate::cli
