"""Lightning operators against the float64 recurrence."""

from __future__ import annotations

from typing import Any

import linestate as ls
import numpy as np
import pytest
from recurrence import error, lightning

H, D, SLOTS = 3, 32, 4
F32, STATE = 1e-5, 5e-7


def inputs(tokens: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = {n: rng.standard_normal((tokens, H, D)).astype(np.float32) for n in ("q", "k", "v")}
    x["slopes"] = ls.lightning_slopes(H, 1, 4)
    x["state"] = rng.standard_normal((SLOTS, H, D, D)).astype(np.float32)
    return x


@pytest.mark.parametrize("kernel", [None, "cpu", "ref"])
def test_prefill_then_decode(kernel: str | None) -> None:
    tokens, scale = 75, D**-0.5
    x = inputs(tokens, 1)
    state, slopes = x.pop("state"), x.pop("slopes")
    o, s = lightning(x["q"], x["k"], x["v"], slopes, np.zeros((H, D, D)), scale)
    head = {name: value[:70] for name, value in x.items()}
    common: dict[str, Any] = {"slopes": slopes, "state": state, "scale": scale, "kernel": kernel}
    parts = [ls.lightning_prefill(**head, **common, rows=ls.Rows.of([2], [70])).numpy()]
    for t in range(70, tokens):
        one = {name: value[t : t + 1] for name, value in x.items()}
        parts.append(ls.lightning_decode(**one, **common, rows=ls.Rows([2])).numpy())
    assert error(np.concatenate(parts), o) <= F32
    assert error(state[2], s) <= STATE


def test_verify_of_a_chain_and_commit() -> None:
    x = inputs(4, 2)
    old = x["state"][0].copy()
    rows = ls.Rows.of([0], [4], [9])
    record = ls.LightningRecord.empty(4, heads=H, dim=D, dtype="f32")
    out = ls.lightning_verify(**x, rows=rows, record=record).numpy()
    o, _ = lightning(x["q"], x["k"], x["v"], x["slopes"], old, 1.0)
    assert error(out, o) <= F32
    assert np.array_equal(x["state"][0], old)
    ls.lightning_commit(rows, record, [1], x["slopes"], x["state"])
    two = (x[n][:2] for n in ("q", "k", "v"))
    _, s = lightning(*two, x["slopes"], old, 1.0)
    assert error(x["state"][0], s) <= STATE


def test_slopes_of_a_shard() -> None:
    whole = ls.lightning_slopes(8, 3, 12)
    parts = [ls.lightning_slopes(8, 3, 12, tp_rank=r, tp_size=4) for r in range(4)]
    assert np.array_equal(np.concatenate(parts), whole)
    factor = 1 - 3 / 11 + 1e-5
    assert np.allclose(whole, [2.0 ** -(i + 1) * factor for i in range(8)], rtol=1e-6)
    with pytest.raises(ValueError, match="num_heads"):
        ls.lightning_slopes(8, 3, 12, tp_size=3)


def test_replay_equals_decode_and_folds() -> None:
    ring_length, steps = 4, 7
    x = inputs(steps, 3)
    slopes, start = x["slopes"], x["state"].copy()
    plain, buffered = start.copy(), start.copy()
    shape = (SLOTS, H, ring_length - 1, D)
    ring = ls.ReplayRing(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    cursor = np.zeros(SLOTS, np.int32)
    rows = ls.Rows([1])
    for t in range(steps):
        one = {n: x[n][t : t + 1] for n in ("q", "k", "v")}
        expected = ls.lightning_decode(**one, slopes=slopes, state=plain, rows=rows).numpy()
        pending, flush = ls.replay_step_begin(rows, cursor, ring_length=ring_length)
        assert pending.numpy()[0] == t % ring_length
        assert flush.numpy()[0] == (t % ring_length == ring_length - 1)
        got = ls.lightning_decode_replay(
            **one, slopes=slopes, state=buffered, rows=rows, ring=ring, pending=pending, flush=flush
        )
        assert error(got.numpy(), expected.astype(np.float64)) <= F32
    assert cursor[1] == steps % ring_length
    ls.replay_fold([ls.FoldLayer(buffered, ring, slopes)], [1], cursor)
    assert cursor[1] == 0
    assert error(buffered[1], plain[1].astype(np.float64)) <= STATE
