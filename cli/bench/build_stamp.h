// What this binary was built from; written by cmake/BuildStamp.cmake at every build.
#pragma once

namespace linestate::cli {

/// Compiler flags of the build type: "-O3 -DNDEBUG".
const char* build_flags();
/// Commit of the sources, "-dirty" behind it when they differ; "unknown" outside a repository.
const char* build_commit();

}  // namespace linestate::cli
