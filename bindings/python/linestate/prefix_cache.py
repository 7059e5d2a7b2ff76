"""Which token prefixes have a saved state, and in which pool slot. Units are tokens everywhere."""

from __future__ import annotations

from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._abi import _constants as c
from ._abi._library import Handle, call, create
from ._abi._params import fill
from ._abi._structs import ls_prefix_cache_options, ls_prefix_cache_stats
from .rows import CHUNK_TOKENS

OUTCOMES = {c.LS_INSERTED: "inserted", c.LS_DUPLICATE: "duplicate", c.LS_NO_ROOM: "no_room"}


@dataclass(frozen=True)
class PrefixCacheStats:
    """Counts since the cache was made; entries, leased and bytes are of now."""

    lookups: int
    hits: int
    hit_tokens: int
    inserted: int
    duplicates: int
    rejected: int
    evicted: int
    entries: int
    leased: int
    bytes: int


class Lease(Handle):
    """One reader's hold on a snapshot: while it lives, the slot is not evicted. Also a `with`
    block.
    """

    _destroy = "prefix_lease_destroy"

    def __init__(self, pointer: c_void_p, slot: int, position: int) -> None:
        super().__init__(pointer)
        self.slot = slot
        self.position = position

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _tokens(tokens: Any) -> tuple[NDArray[np.int64], Any]:
    from ctypes import POINTER

    array = np.ascontiguousarray(tokens, np.int64)
    return array, array.ctypes.data_as(POINTER(c_int64))


class PrefixCache(Handle):
    """A radix tree over token blocks that owns snapshot slots. One owner thread, leases included.

    byte_budget: for all snapshots. bytes_per_snapshot: `PoolSpec.bytes_per_slot`. block_tokens:
    snapshots lie at multiples of it, itself a multiple of 64. A slot that is inserted comes back
    exactly once, from `insert`, `evict`, `clear`, `erase` or `take`; the caller then frees it.
    Errors: InvalidArgumentError.
    """

    _destroy = "prefix_cache_destroy"

    def __init__(
        self, byte_budget: int, bytes_per_snapshot: int, *, block_tokens: int = CHUNK_TOKENS
    ) -> None:
        options = fill(
            ls_prefix_cache_options,
            block_tokens=block_tokens,
            byte_budget=byte_budget,
            bytes_per_snapshot=bytes_per_snapshot,
        )
        super().__init__(create("prefix_cache_create", byref(options)))

    def match(self, tokens: Any) -> Lease | None:
        """The longest snapshot of a proper prefix of `tokens`, held; None = a miss."""
        array, address = _tokens(tokens)
        pointer, slot, position = c_void_p(), c_int32(), c_int64()
        where = (byref(pointer), byref(slot), byref(position))
        call("prefix_cache_match", self.pointer, address, array.size, *where)
        return Lease(pointer, slot.value, position.value) if pointer.value else None

    def contains(self, tokens: Any, position: int) -> bool:
        """Whether tokens[:position] has a snapshot. Counts as no use."""
        array, address = _tokens(tokens)
        answer = c_int32()
        call("prefix_cache_contains", self.pointer, address, array.size, position, byref(answer))
        return bool(answer.value)

    def insert(self, tokens: Any, position: int, slot: int) -> tuple[str, list[int]]:
        """Gives `slot` as the snapshot of tokens[:position]; (outcome, slots that are yours again).

        Outcomes: "inserted"; "duplicate" and "no_room", with the newcomer's slot among those given
        back. Errors: InvalidArgumentError; the slot stays the caller's.
        """
        array, address = _tokens(tokens)
        outcome = c_int32()
        arguments = (self.pointer, address, array.size, position, slot, byref(outcome))
        call("prefix_cache_insert", *arguments)
        return OUTCOMES[outcome.value], self._freed()

    def evict(self, count: int) -> list[int]:
        """Up to `count` snapshots without a lease leave, least recently used first; their slots."""
        call("prefix_cache_evict", self.pointer, count)
        return self._freed()

    def clear(self) -> list[int]:
        """All leave; their slots. Errors: FailedPreconditionError while any is leased."""
        call("prefix_cache_clear", self.pointer)
        return self._freed()

    def erase(self, tokens: Any, position: int) -> int:
        """One leaves; its slot. Errors: NotFoundError, FailedPreconditionError (leased)."""
        array, address = _tokens(tokens)
        slot = c_int32()
        call("prefix_cache_erase", self.pointer, address, array.size, position, byref(slot))
        return slot.value

    def take(self, lease: Lease) -> int:
        """The leased snapshot itself leaves; its slot. The lease holds nothing then.

        Errors: FailedPreconditionError (another lease holds it too).
        """
        slot = c_int32()
        call("prefix_cache_take", self.pointer, lease.pointer, byref(slot))
        lease.close()
        return slot.value

    def stats(self) -> PrefixCacheStats:
        """Counts."""
        stats = fill(ls_prefix_cache_stats)
        call("prefix_cache_get_stats", self.pointer, byref(stats))
        names = [one.name for one in dataclass_fields(PrefixCacheStats)]
        return PrefixCacheStats(*(getattr(stats, name) for name in names))

    def _freed(self) -> list[int]:
        found: list[int] = []
        slots, count = (c_int32 * 64)(), c_size_t(64)
        while count.value == 64:
            call("prefix_cache_take_freed", self.pointer, slots, 64, byref(count))
            found += slots[: count.value]
        return found
