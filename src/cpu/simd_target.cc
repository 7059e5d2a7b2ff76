#include "cpu/simd_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_target.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(target_name);

const char* simd_target_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace linestate
#endif
