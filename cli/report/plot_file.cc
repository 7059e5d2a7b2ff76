#include "cli/report/plot_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace linestate::cli {
namespace {

Status cannot_write(const std::string& path, const char* reason) {
  return Status(StatusCode::kIo, "cannot write " + path + ": " + reason);
}

std::string temporary_name(const std::string& path) {
  return path + ".tmp" + std::to_string(getpid());
}

Status check_not_directory(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return cannot_write(path, "it is a directory");
  }
  return {};
}

int create_file(const std::string& name) {
  return open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
}

}  // namespace

Status check_writable(const std::string& path) {
  LINESTATE_RETURN_IF_ERROR(check_not_directory(path));
  const std::string temporary = temporary_name(path);
  const int file = create_file(temporary);
  if (file < 0) return cannot_write(path, std::strerror(errno));
  close(file);
  unlink(temporary.c_str());
  return {};
}

Status write_whole_file(const std::string& path, std::string_view content) {
  const std::string temporary = temporary_name(path);
  const int file = create_file(temporary);
  if (file < 0) return cannot_write(path, std::strerror(errno));
  size_t done = 0;
  bool good = true;
  while (good && done < content.size()) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    good = wrote > 0;
    if (good) done += static_cast<size_t>(wrote);
  }
  good = close(file) == 0 && good;
  if (good && rename(temporary.c_str(), path.c_str()) == 0) return {};
  const Status status = cannot_write(path, std::strerror(errno));
  unlink(temporary.c_str());
  return status;
}

}  // namespace linestate::cli
