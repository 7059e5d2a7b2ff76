#include "base/run_copy.h"

#include <cstring>

#include "base/element.h"
#include "base/int_math.h"

namespace linestate {
namespace {

template <typename Word>
void copy_words(const Run& dst, const ConstRun& src, int64_t n) {
  Word* to = static_cast<Word*>(dst.data) + dst.offset;
  const Word* from = static_cast<const Word*>(src.data) + src.offset;
  if (dst.stride == 1 && src.stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(Word));
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i * dst.stride] = from[i * src.stride];
}

template <typename Word>
void zero_words(const Run& dst, int64_t n) {
  Word* to = static_cast<Word*>(dst.data) + dst.offset;
  if (dst.stride == 1) {
    std::memset(to, 0, static_cast<size_t>(n) * sizeof(Word));
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i * dst.stride] = 0;
}

bool convert_run(const Run& dst, const ConstRun& src, int64_t n) {
  constexpr int64_t kPiece = 256;
  float values[kPiece];
  bool fits = true;
  for (int64_t done = 0; done < n; done += kPiece) {
    const int64_t count = min_i64(kPiece, n - done);
    load_run(src.data, src.dtype, src.offset + done * src.stride, src.stride, count, values);
    fits &=
        store_run(dst.data, dst.dtype, dst.offset + done * dst.stride, dst.stride, count, values);
  }
  return fits;
}

}  // namespace

bool copy_run(const Run& dst, const ConstRun& src, int64_t n) {
  if (n <= 0) return true;
  if (dst.dtype != src.dtype) return convert_run(dst, src, n);
  switch (dtype_bytes(dst.dtype)) {
    case 1:
      copy_words<uint8_t>(dst, src, n);
      break;
    case 2:
      copy_words<uint16_t>(dst, src, n);
      break;
    case 4:
      copy_words<uint32_t>(dst, src, n);
      break;
    default:
      copy_words<uint64_t>(dst, src, n);
      break;
  }
  return true;
}

void zero_run(const Run& dst, int64_t n) {
  if (n <= 0) return;
  switch (dtype_bytes(dst.dtype)) {
    case 1:
      zero_words<uint8_t>(dst, n);
      break;
    case 2:
      zero_words<uint16_t>(dst, n);
      break;
    case 4:
      zero_words<uint32_t>(dst, n);
      break;
    default:
      zero_words<uint64_t>(dst, n);
      break;
  }
}

}  // namespace linestate
