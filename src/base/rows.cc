#include "linestate/rows.h"

namespace linestate {

const char* row_kind_name(RowKind kind) {
  switch (kind) {
    case RowKind::kExtend:
      return "extend";
    case RowKind::kDecode:
      return "decode";
    case RowKind::kVerify:
      return "verify";
    case RowKind::kPad:
      return "pad";
  }
  return "unknown";
}

}  // namespace linestate
