// Version of the library. The numerics version changes whenever a release may give other bits than
// the release before; until the first one it is 1.
#pragma once

#define LINESTATE_VERSION_MAJOR 0
#define LINESTATE_VERSION_MINOR 1
#define LINESTATE_VERSION_PATCH 0

namespace linestate {

inline constexpr int kNumericsVersion = 1;

/// "0.1.0".
const char* version_string();
/// What this binary was built with: compiler, build type, "cpu" or "cpu+cuda sm_90a".
const char* build_description();

}  // namespace linestate
