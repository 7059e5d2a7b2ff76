// The end of a run in words: a table for people, one JSON object for programs.
#pragma once

#include <string>

#include "cli/replay/result.h"
#include "cli/replay/settings.h"

namespace linestate::cli {

std::string report_table(const ReplaySettings& settings, const ReplayResult& result);
/// One object on one line, with the same numbers, the options, version and build.
std::string report_json(const ReplaySettings& settings, const ReplayResult& result);

/// "1.50 GiB", "512 B".
std::string bytes_text(int64_t bytes);
/// "12 345 678".
std::string count_text(int64_t count);

}  // namespace linestate::cli
