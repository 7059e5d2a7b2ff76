#include "cli/bench/bench_compare.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/exit_codes.h"
#include "testing/json.h"

namespace linestate::cli {
namespace {

using testing::Json;

Status bad_line(const std::string& path, int64_t line, const std::string& why) {
  return Status(StatusCode::kDataLoss, path + ":" + std::to_string(line) + ": " + why);
}

Status read_positive(const Json& row, const char* key, double& value) {
  const Result<double> number = row.get_double(key);
  if (!number.ok()) return number.status();
  value = *number;
  if (value > 0.0) return {};
  return Status(StatusCode::kDataLoss, std::string(key) + ": expected a number above 0");
}

Status read_row(const Json& line, ComparedRow& row) {
  for (const char* key : {"op", "model", "layout", "io_dtype", "state_dtype", "requested"}) {
    const Result<std::string> text = line.get_string(key);
    if (!text.ok()) return text.status();
    if (!row.key.empty()) row.key += ' ';
    row.key += *text;
  }
  for (const char* key : {"heads", "value_heads", "k_dim", "v_dim", "threads"}) {
    const Result<int64_t> number = line.get_int(key);
    if (!number.ok()) return number.status();
    row.key += ' ';
    row.key += std::to_string(*number);
  }
  if (line.find("choices") != nullptr) {  // files of before 2026-12 have none
    const Result<std::string> choices = line.get_string("choices");
    if (!choices.ok()) return choices.status();
    if (!choices->empty()) row.key.append(" ").append(*choices);
  }
  LINESTATE_RETURN_IF_ERROR(read_positive(line, "median_us", row.timing.median_us));
  LINESTATE_RETURN_IF_ERROR(read_positive(line, "p10_us", row.timing.p10_us));
  return read_positive(line, "p90_us", row.timing.p90_us);
}

Status read_run(const Json& line, BenchFile& file) {
  const Result<const Json*> machine = line.get("machine");
  if (!machine.ok()) return machine.status();
  const Result<std::string> name = (*machine)->get_string("name");
  if (!name.ok()) return name.status();
  file.machine = *name;
  const Result<const Json*> build = line.get("build");
  if (!build.ok()) return build.status();
  const Result<std::string> commit = (*build)->get_string("commit");
  if (!commit.ok()) return commit.status();
  file.commit = *commit;
  const Result<std::string> clock = line.get_string("clock");
  if (!clock.ok()) return clock.status();
  file.clock = *clock;
  const Result<const Json::Array*> roofs = line.get_array("roofs");
  if (!roofs.ok()) return roofs.status();
  if ((*roofs)->empty()) return Status(StatusCode::kDataLoss, "roofs: expected at least one");
  const Json& first = (*roofs)->front();
  LINESTATE_RETURN_IF_ERROR(
      read_positive(first, "copy_bytes_per_second", file.copy_bytes_per_second));
  return read_positive(first, "flops_per_second", file.flops_per_second);
}

std::string percent_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof(text), "%+.1f%%", 100.0 * (ratio - 1.0));
  return text;
}

std::string row_text(const ComparedRow& before, const ComparedRow& after, Change change) {
  static constexpr const char* kWords[] = {"within noise", "faster", "SLOWER"};
  char text[320];
  std::snprintf(text, sizeof(text), "%-86s %12.1f %12.1f %8.3f  %s\n", after.key.c_str(),
                before.timing.median_us, after.timing.median_us,
                after.timing.median_us / before.timing.median_us, kWords[static_cast<int>(change)]);
  return text;
}

std::string head_text(const BenchFile& before, const BenchFile& after) {
  std::string text = "before: " + before.machine + ", commit " + before.commit +
                     "\nafter:  " + after.machine + ", commit " + after.commit +
                     "\nthe machine itself, after against before: copy bandwidth " +
                     percent_text(after.copy_bytes_per_second / before.copy_bytes_per_second) +
                     ", multiply-add peak " +
                     percent_text(after.flops_per_second / before.flops_per_second) + "\n\n";
  char columns[320];
  std::snprintf(columns, sizeof(columns), "%-86s %12s %12s %8s\n",
                "op model rows io state kernel H HV K V threads", "before us", "after us", "ratio");
  return text + columns;
}

}  // namespace

Result<BenchFile> parse_bench_file(std::string_view text, const std::string& path) {
  BenchFile file;
  std::map<std::string, int64_t> seen;
  bool has_run = false;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    const Result<Json> json = testing::parse_json(line);
    if (!json.ok()) return bad_line(path, number, json.status().message());
    const Result<std::string> record = json->get_string("record");
    if (!record.ok()) return bad_line(path, number, record.status().message());
    if (*record == "run") {
      if (has_run) return bad_line(path, number, "record: a second run in one file");
      has_run = true;
      const Status status = read_run(*json, file);
      if (!status.ok()) return bad_line(path, number, status.message());
    } else if (*record == "row") {
      ComparedRow row;
      const Status status = read_row(*json, row);
      if (!status.ok()) return bad_line(path, number, status.message());
      if (!seen.emplace(row.key, number).second) {
        return bad_line(path, number, "the same case as in an earlier line: " + row.key);
      }
      file.rows.push_back(std::move(row));
    }
  }
  if (!has_run) return bad_line(path, 1, "expected a line with \"record\": \"run\"");
  return file;
}

Result<BenchFile> read_bench_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (!stream || !(text << stream.rdbuf())) {
    return Status(StatusCode::kIo, "cannot read " + path);
  }
  return parse_bench_file(text.str(), path);
}

Change judge(const ComparedTiming& before, const ComparedTiming& after) {
  if (after.p10_us > before.p90_us) return Change::kSlower;
  if (after.p90_us < before.p10_us) return Change::kFaster;
  return Change::kNoise;
}

BenchComparison compare_bench(const BenchFile& before, const BenchFile& after) {
  BenchComparison comparison;
  comparison.text = head_text(before, after);
  std::map<std::string, const ComparedRow*> old_rows;
  for (const ComparedRow& row : before.rows) old_rows.emplace(row.key, &row);
  std::string lonely;
  for (const ComparedRow& row : after.rows) {
    const auto found = old_rows.find(row.key);
    if (found == old_rows.end()) {
      lonely += "only after:  " + row.key + "\n";
      continue;
    }
    const Change change = judge(found->second->timing, row.timing);
    comparison.text += row_text(*found->second, row, change);
    ++comparison.matched;
    if (change == Change::kSlower) {
      const double ratio = row.timing.median_us / found->second->timing.median_us;
      comparison.worst_percent = std::max(comparison.worst_percent, 100.0 * (ratio - 1.0));
    }
    old_rows.erase(found);
  }
  for (const ComparedRow& row : before.rows) {
    if (old_rows.count(row.key) != 0) lonely += "only before: " + row.key + "\n";
  }
  comparison.text += lonely;
  return comparison;
}

int run_bench_compare(const std::string& before, const std::string& after, double fail_above) {
  const Result<BenchFile> old_file = read_bench_file(before);
  if (!old_file.ok()) return fail(old_file.status());
  const Result<BenchFile> new_file = read_bench_file(after);
  if (!new_file.ok()) return fail(new_file.status());
  if (old_file->clock != new_file->clock) {
    return fail(
        {StatusCode::kInvalidArgument, "--compare: expected two files of one --clock, got " +
                                           old_file->clock + " and " + new_file->clock});
  }
  const BenchComparison comparison = compare_bench(*old_file, *new_file);
  std::fputs(comparison.text.c_str(), stdout);
  if (comparison.matched == 0) {
    return fail({StatusCode::kInvalidArgument, "--compare: the files have no case in common"});
  }
  if (fail_above >= 0.0 && comparison.worst_percent > fail_above) {
    char text[96];
    std::snprintf(text, sizeof(text), "--fail-above %g: a case is slower by %.1f percent",
                  fail_above, comparison.worst_percent);
    return fail({StatusCode::kInternal, text}, kVerificationExitCode);
  }
  return std::fflush(stdout) == 0 ? kOkExitCode : kUsageExitCode;
}

}  // namespace linestate::cli
