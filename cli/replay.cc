#include "cli/replay.h"

#include <cstdio>
#include <string>

#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/replay/engine.h"
#include "cli/report/plot.h"
#include "cli/report/plot_file.h"
#include "cli/report/report.h"

namespace linestate::cli {

int run_replay_verb(const ReplayOptions& options) {
  install_interrupt_handlers();
  const Result<ReplaySettings> settings = resolve_settings(options);
  if (!settings.ok()) return fail(settings.status());
  const Result<ReplayResult> result = run_replay(*settings, choose_progress(options.json));
  if (!result.ok()) return fail(result.status());
  if (!result->verify.ok()) {
    return fail(Status(StatusCode::kInternal, result->verify.failure()), kVerificationExitCode);
  }
  if (!options.plot.empty()) {
    const Status written = write_whole_file(options.plot, plot_svg(*settings, *result));
    if (!written.ok()) return fail(written);
  }
  const std::string text =
      options.json ? report_json(*settings, *result) : report_table(*settings, *result);
  std::fputs(text.c_str(), stdout);
  return kOkExitCode;
}

}  // namespace linestate::cli
