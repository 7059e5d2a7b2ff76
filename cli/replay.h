// `linestate replay`: a request trace through the backends.
#pragma once

#include "cli/replay/settings.h"

namespace linestate::cli {

/// Prints the report on stdout, errors on stderr. Returns the exit code: 0; 1 when verification
/// failed; 2 for input that cannot be run; 130 when interrupted.
int run_replay_verb(const ReplayOptions& options);

}  // namespace linestate::cli
