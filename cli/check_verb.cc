#include "cli/check_verb.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>

#include "cli/device_choice.h"
#include "testing/golden.h"
#include "testing/json.h"
#include "testing/safetensors.h"

namespace linestate::cli {
namespace {

using testing::GoldenLine;
using testing::GoldenReport;
using testing::GoldenVerdict;
using testing::Json;

enum class Outcome { kPassed, kFailed, kUnreadable, kNotRun, kNoOperator };

struct FileResult {
  std::string path;
  Outcome outcome = Outcome::kUnreadable;
  std::string message;  // why it is unreadable or not run
  GoldenReport report;
};

struct Counts {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t unreadable = 0;
  int64_t not_run = 0;
  int64_t no_operator = 0;  // files that no kernel has a part in; no failure
};

FileResult check_file(const std::string& path, const testing::GoldenOptions& options) {
  FileResult result;
  result.path = path;
  const Result<testing::Safetensors> file = testing::read_safetensors(path);
  if (!file.ok()) {
    result.message = file.status().message();
    return result;
  }
  Result<GoldenReport> report = testing::run_golden(*file, path, options);
  if (!report.ok()) {
    const StatusCode code = report.status().code();
    result.outcome = code == StatusCode::kUnsupported          ? Outcome::kNotRun
                     : code == StatusCode::kFailedPrecondition ? Outcome::kNoOperator
                                                               : Outcome::kUnreadable;
    result.message = report.status().message();
    return result;
  }
  result.report = std::move(*report);
  result.outcome = result.report.passed() ? Outcome::kPassed : Outcome::kFailed;
  return result;
}

std::string short_name(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

std::string scientific(double value) {
  std::ostringstream text;
  text << std::scientific << std::setprecision(2) << value;
  return text.str();
}

std::string_view verdict_text(GoldenVerdict verdict) {
  switch (verdict) {
    case GoldenVerdict::kPass:
      return "pass";
    case GoldenVerdict::kFail:
      return "FAIL";
    case GoldenVerdict::kInfo:
      break;
  }
  return "info";
}

constexpr int kFileWidth = 37;
constexpr int kKernelWidth = 8;
constexpr int kTensorWidth = 31;
constexpr int kNumberWidth = 10;

void print_header(std::ostream& out) {
  out << std::left << std::setw(kFileWidth) << "file" << std::setw(kKernelWidth) << "kernel"
      << std::setw(kTensorWidth) << "tensor" << std::setw(kNumberWidth) << "error"
      << std::setw(kNumberWidth) << "max abs" << std::setw(kNumberWidth) << "SGLang's"
      << std::setw(kNumberWidth) << "limit"
      << "verdict\n";
}

void print_line(const FileResult& file, const GoldenLine& line, std::ostream& out) {
  const bool judged = line.verdict != GoldenVerdict::kInfo;
  out << std::left << std::setw(kFileWidth) << short_name(file.path) << std::setw(kKernelWidth)
      << file.report.kernel << std::setw(kTensorWidth) << line.tensor << std::setw(kNumberWidth)
      << (line.exact ? "-" : scientific(line.rel)) << std::setw(kNumberWidth)
      << (line.exact ? "-" : scientific(line.max_abs)) << std::setw(kNumberWidth)
      << (line.sglang ? scientific(*line.sglang) : "-") << std::setw(kNumberWidth)
      << (line.exact ? "bits" : (judged ? scientific(line.limit) : "-"))
      << verdict_text(line.verdict);
  if (!line.note.empty()) out << "  " << line.note;
  out << '\n';
}

void print_file(const FileResult& file, std::ostream& out, std::ostream& err) {
  switch (file.outcome) {
    case Outcome::kPassed:
    case Outcome::kFailed:
      for (const GoldenLine& line : file.report.lines) print_line(file, line, out);
      break;
    case Outcome::kUnreadable:
      err << "linestate: " << file.message << '\n';
      break;
    case Outcome::kNotRun:
    case Outcome::kNoOperator:
      out << std::left << std::setw(kFileWidth) << short_name(file.path)
          << "not run: " << file.message << '\n';
      break;
  }
}

Json line_json(const GoldenLine& line) {
  Json json = Json::object();
  json.set("tensor", line.tensor).set("exact", line.exact);
  if (!line.exact) json.set("error", line.rel).set("max_abs", line.max_abs);
  if (line.sglang) json.set("sglang_error", *line.sglang);
  if (line.verdict != GoldenVerdict::kInfo) json.set("limit", line.limit);
  json.set("verdict", line.verdict == GoldenVerdict::kFail ? "fail" : verdict_text(line.verdict));
  if (!line.note.empty()) json.set("note", line.note);
  return json;
}

Json file_json(const FileResult& file) {
  static constexpr const char* outcomes[] = {"passed", "failed", "unreadable", "not_run",
                                             "no_operator"};
  Json json = Json::object();
  json.set("file", file.path).set("outcome", outcomes[static_cast<size_t>(file.outcome)]);
  if (!file.message.empty()) json.set("message", file.message);
  if (file.report.lines.empty()) return json;
  json.set("op", file.report.op).set("kernel", file.report.kernel);
  Json lines = Json::array();
  for (const GoldenLine& line : file.report.lines) lines.push(line_json(line));
  json.set("tensors", std::move(lines));
  return json;
}

void count(Outcome outcome, Counts& counts) {
  switch (outcome) {
    case Outcome::kPassed:
      ++counts.passed;
      break;
    case Outcome::kFailed:
      ++counts.failed;
      break;
    case Outcome::kUnreadable:
      ++counts.unreadable;
      break;
    case Outcome::kNotRun:
      ++counts.not_run;
      break;
    case Outcome::kNoOperator:
      ++counts.no_operator;
      break;
  }
}

int exit_code(const Counts& counts) {
  if (counts.failed > 0) return kCheckPastLimits;
  if (counts.unreadable > 0) return kCheckUnreadable;
  if (counts.not_run > 0) return kCheckNotRun;
  return 0;
}

/// Why the options cannot be used; empty = they can.
std::string bad_options(const CheckOptions& options) {
  if (options.files.empty()) return "check: expected at least one file";
  if (const Result<DeviceChoice> device = choose_device(options.device, options.kernel);
      !device.ok()) {
    return device.status().message();
  }
  if (options.threads < 0) {
    return "--threads: expected at least 0, got " + std::to_string(options.threads);
  }
  return {};
}

}  // namespace

int run_check(const CheckOptions& options, std::ostream& out, std::ostream& err) {
  const std::string problem = bad_options(options);
  if (!problem.empty()) {
    err << "linestate: " << problem << '\n';
    return kCheckUnreadable;
  }
  testing::GoldenOptions golden;
  golden.kernel = options.kernel;
  golden.threads = options.threads;
  golden.device = choose_device(options.device, options.kernel)->device;
  Counts counts;
  Json files = Json::array();
  if (!options.json) print_header(out);
  for (const std::string& path : options.files) {
    const FileResult file = check_file(path, golden);
    count(file.outcome, counts);
    if (options.json) {
      files.push(file_json(file));
    } else {
      print_file(file, out, err);
    }
  }
  if (options.json) {
    Json json = Json::object();
    json.set("files", std::move(files));
    json.set("passed", counts.passed).set("failed", counts.failed);
    json.set("unreadable", counts.unreadable).set("not_run", counts.not_run);
    json.set("no_operator", counts.no_operator);
    out << testing::dump_json(json, true) << '\n';
  } else {
    out << options.files.size() << " files: " << counts.passed << " passed, " << counts.failed
        << " failed, " << counts.unreadable << " unreadable, " << counts.not_run << " not run";
    if (counts.no_operator > 0) out << ", " << counts.no_operator << " without an operator";
    out << '\n';
  }
  return exit_code(counts);
}

int run_check(const CheckOptions& options) { return run_check(options, std::cout, std::cerr); }

}  // namespace linestate::cli
