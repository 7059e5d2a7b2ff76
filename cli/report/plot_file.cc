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

// A device or a pipe: written as it is, since a rename would put a file in its place.
bool is_special(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

// 0, or errno of what failed. Closes the file.
int write_and_close(int file, std::string_view content) {
  int error = 0;
  while (error == 0 && !content.empty()) {
    const ssize_t wrote = write(file, content.data(), content.size());
    if (wrote > 0) {
      content.remove_prefix(static_cast<size_t>(wrote));
    } else if (wrote == 0 || errno != EINTR) {
      error = wrote == 0 ? EIO : errno;
    }
  }
  if (close(file) != 0 && error == 0) error = errno;
  return error;
}

}  // namespace

Status check_writable(const std::string& path) {
  LINESTATE_RETURN_IF_ERROR(check_not_directory(path));
  if (is_special(path)) {
    return access(path.c_str(), W_OK) == 0 ? Status() : cannot_write(path, std::strerror(errno));
  }
  const std::string temporary = temporary_name(path);
  const int file = create_file(temporary);
  if (file < 0) return cannot_write(path, std::strerror(errno));
  close(file);
  unlink(temporary.c_str());
  return {};
}

Status write_whole_file(const std::string& path, std::string_view content) {
  const bool special = is_special(path);
  const std::string temporary = special ? path : temporary_name(path);
  const int file = special ? open(path.c_str(), O_WRONLY | O_CLOEXEC) : create_file(temporary);
  if (file < 0) return cannot_write(path, std::strerror(errno));
  int error = write_and_close(file, content);
  if (special) return error == 0 ? Status() : cannot_write(path, std::strerror(error));
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  unlink(temporary.c_str());
  return cannot_write(path, std::strerror(error));
}

}  // namespace linestate::cli
