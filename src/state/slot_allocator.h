// Which slots are free, taken, or retired and still in flight. Host bookkeeping only.
#pragma once

#include <cstdint>
#include <vector>

#include "linestate/state_pool.h"
#include "linestate/status.h"

namespace linestate {

class SlotAllocator {
 public:
  explicit SlotAllocator(int64_t num_slots) : num_slots_(num_slots) {}

  Result<int32_t> allocate();
  Status retire(int32_t slot, SlotEvent event);
  bool allocated(int32_t slot) const;
  int64_t free_slots();
  int64_t in_flight_slots();

 private:
  struct InFlight {
    int32_t slot;
    SlotEvent event;
  };
  void collect();  // moves slots whose event has passed to the free heap
  void add_free(int32_t slot);
  // Room for this many slots to come back, so that only allocate() ever needs memory.
  void reserve(size_t slots);

  int64_t num_slots_;
  std::vector<bool> taken_;    // grows with the highest slot ever handed out
  std::vector<int32_t> free_;  // slots that came back; min-heap, the lowest goes out first
  std::vector<InFlight> in_flight_;
};

}  // namespace linestate
