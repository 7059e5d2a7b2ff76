// The built command from outside: runs it, and looks at exit code, output and files.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace linestate {

using Clock = std::chrono::steady_clock;

inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A folder of this test's own, removed with what is in it.
class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "linestate_cli_XXXXXX";
    path_ = mkdtemp(name.data()) == nullptr ? std::string() : name;
  }
  ~Folder() {
    for (const std::string& name : files()) std::remove((path_ + "/" + name).c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(file(name)) << content;
    return file(name);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    DIR* folder = opendir(path_.c_str());
    if (folder == nullptr) return names;
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(folder);
    return names;
  }

 private:
  std::string path_;
};

struct Outcome {
  int code = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
  double seconds = 0.0;
};

struct How {
  int signal = 0;                          // sent once stderr says `until`
  std::string until;                       // or the command has ended by itself
  double seconds_later = 0.0;              // between the two
  std::function<void()> in_child = [] {};  // before the command starts
};

// Waits until `file` holds `text`, or the child has ended; its status stays to be asked for.
inline void wait_for_text(pid_t child, const std::string& file, const std::string& text) {
  while (read_file(file).find(text) == std::string::npos) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (info.si_pid == child) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Runs the command.
inline Outcome run(std::vector<std::string> args, const How& how = {}) {
  const Folder folder;
  const std::string out = folder.file("out");
  const std::string err = folder.file("err");
  args.insert(args.begin(), LINESTATE_COMMAND);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    how.in_child();
    execv(argv[0], argv.data());
    _exit(127);
  }
  if (how.signal != 0) {
    wait_for_text(child, err, how.until);
    std::this_thread::sleep_for(std::chrono::duration<double>(how.seconds_later));
    kill(child, how.signal);
  }
  const Clock::time_point start = Clock::now();
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome;
  outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read_file(out);
  outcome.err = read_file(err);
  return outcome;
}

// "linestate: ..." on one line of stderr, nothing on stdout.
inline void expect_error(const Outcome& outcome, int code, const std::string& says) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("linestate: ", 0), 0u) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err << "wanted: " << says;
}

}  // namespace linestate
