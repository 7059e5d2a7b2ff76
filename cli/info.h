// `linestate info`: version, build, devices, kernel tables and model presets.
#pragma once

namespace linestate::cli {

/// Prints on stdout, as a table or as one JSON object. Returns the exit code.
int run_info(bool as_json);

}  // namespace linestate::cli
