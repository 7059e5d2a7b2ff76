#include "state/slot_allocator.h"

#include <algorithm>
#include <functional>

#include "base/message.h"

namespace linestate {

SlotAllocator::SlotAllocator(int64_t num_slots)
    : taken_(static_cast<size_t>(num_slots), false), free_(static_cast<size_t>(num_slots)) {
  // Ascending order is a valid min-heap.
  for (size_t i = 0; i < free_.size(); ++i) free_[i] = static_cast<int32_t>(i);
}

void SlotAllocator::add_free(int32_t slot) {
  free_.push_back(slot);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

void SlotAllocator::collect() {
  auto pending = [this](const InFlight& item) {
    if (item.event.done != nullptr && !item.event.done(item.event.handle)) return true;
    add_free(item.slot);
    return false;
  };
  in_flight_.erase(std::stable_partition(in_flight_.begin(), in_flight_.end(), pending),
                   in_flight_.end());
}

Result<int32_t> SlotAllocator::allocate() {
  collect();
  if (free_.empty()) {
    return Status(StatusCode::kResourceExhausted,
                  concat("state pool: no free slot among ", taken_.size(), ", ", in_flight_.size(),
                         " retired and still in flight"));
  }
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t slot = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(slot)] = true;
  return slot;
}

Status SlotAllocator::retire(int32_t slot, SlotEvent event) {
  if (!allocated(slot)) {
    return invalid_argument("slot: expected an allocated slot of ", taken_.size(), ", got ", slot);
  }
  taken_[static_cast<size_t>(slot)] = false;
  if (event.done == nullptr) {
    add_free(slot);
  } else {
    in_flight_.push_back({slot, event});
  }
  return {};
}

bool SlotAllocator::allocated(int32_t slot) const {
  return slot >= 0 && static_cast<size_t>(slot) < taken_.size() &&
         taken_[static_cast<size_t>(slot)];
}

int64_t SlotAllocator::free_slots() {
  collect();
  return static_cast<int64_t>(free_.size());
}

int64_t SlotAllocator::in_flight_slots() {
  collect();
  return static_cast<int64_t>(in_flight_.size());
}

}  // namespace linestate
