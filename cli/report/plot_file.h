// Files that appear whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "linestate/status.h"

namespace linestate::cli {

/// Tries to create a file beside `path` and removes it again; `path` itself is not touched.
/// Errors: kIo with the system's reason.
Status check_writable(const std::string& path);

/// Writes a temporary file beside `path` and renames it; a device or a pipe is written as it is.
/// Errors: kIo; then neither file is there (an older `path` stays as it was).
Status write_whole_file(const std::string& path, std::string_view content);

}  // namespace linestate::cli
