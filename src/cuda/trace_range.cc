#include "linestate/trace_range.h"

#ifdef LINESTATE_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace linestate {

#ifdef LINESTATE_CUDA

namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("linestate");
  return handle;
}

}  // namespace

TraceRange::TraceRange(const char* name) {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &event);
}

TraceRange::~TraceRange() { nvtxDomainRangePop(domain()); }

#else

TraceRange::TraceRange(const char*) {}
TraceRange::~TraceRange() = default;

#endif

}  // namespace linestate
