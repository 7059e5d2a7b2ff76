// The prefix cache against its model: the input is the stream of choices.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "state/prefix_cache_case.h"

namespace {

// One byte a choice; zeros when the input has ended.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  int64_t integer(int64_t low, int64_t high) {
    const int64_t byte = empty() ? 0 : *at_++;
    return low + byte % (high - low + 1);
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

void must_be_empty(const std::string& problem) {
  if (problem.empty()) return;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes choices(data, size);
  const int64_t slots = choices.integer(1, 12);
  const int64_t capacity = choices.integer(0, 9);
  linestate::PrefixCacheCase<Bytes> cache(choices, slots, capacity);
  while (!choices.empty()) {
    must_be_empty(cache.step());
    must_be_empty(cache.check_everything());
  }
  must_be_empty(cache.finish());
  return 0;
}
