#include "state/slot_allocator.h"

#include <algorithm>
#include <functional>

#include "base/message.h"

namespace linestate {

void SlotAllocator::add_free(int32_t slot) {
  free_.push_back(slot);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

void SlotAllocator::collect() {
  auto passed = [this](const InFlight& item) {
    if (item.event.done != nullptr && !item.event.done(item.event.handle)) return false;
    add_free(item.slot);
    return true;
  };
  in_flight_.erase(std::remove_if(in_flight_.begin(), in_flight_.end(), passed), in_flight_.end());
}

void SlotAllocator::reserve(size_t slots) {
  if (slots <= free_.capacity() && slots <= in_flight_.capacity()) return;
  free_.reserve(std::max(slots, 2 * free_.capacity()));
  in_flight_.reserve(free_.capacity());
}

Result<int32_t> SlotAllocator::allocate() {
  collect();
  if (!free_.empty()) {  // every returned slot is lower than the untouched ones
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    const int32_t slot = free_.back();
    free_.pop_back();
    taken_[static_cast<size_t>(slot)] = true;
    return slot;
  }
  if (static_cast<int64_t>(taken_.size()) == num_slots_) {
    return Status(StatusCode::kResourceExhausted,
                  concat("state pool: no free slot among ", num_slots_, ", ", in_flight_.size(),
                         " retired and still in flight"));
  }
  reserve(taken_.size() + 1);
  taken_.push_back(true);
  return static_cast<int32_t>(taken_.size() - 1);
}

Status SlotAllocator::retire(int32_t slot, SlotEvent event) {
  if (!allocated(slot)) {
    return invalid_argument("slot: expected an allocated slot of ", num_slots_, ", got ", slot);
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
  return num_slots_ - static_cast<int64_t>(taken_.size()) + static_cast<int64_t>(free_.size());
}

int64_t SlotAllocator::in_flight_slots() {
  collect();
  return static_cast<int64_t>(in_flight_.size());
}

}  // namespace linestate
