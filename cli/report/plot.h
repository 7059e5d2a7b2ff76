// A run as a picture: running requests, tokens per second and pool occupancy over the steps.
#pragma once

#include <string>

#include "cli/replay/result.h"
#include "cli/replay/settings.h"

namespace linestate::cli {

/// A complete SVG document. The x axis is seconds when the trace's clock runs, else steps.
std::string plot_svg(const ReplaySettings& settings, const ReplayResult& result);

/// Step between axis labels: 1, 2 or 5 times a power of ten, about `wanted` of them in [0, high].
double nice_step(double high, int wanted);

}  // namespace linestate::cli
