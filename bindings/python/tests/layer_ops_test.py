"""Convolution, norms, slot moves and draft trees against their formulas."""

from __future__ import annotations

from typing import Any

import linestate as ls
import numpy as np
import pytest
from recurrence import conv, error, sigmoid

F32 = 1e-6


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_convolution_prefill_update_and_verify() -> None:
    channels, taps, tokens = 24, 4, 9
    x, weight, bias = normal(1, tokens, channels), normal(2, channels, taps), normal(3, channels)
    window = normal(4, 3, channels, taps - 1)
    old = window[2].copy()
    o, w = conv(x, weight, bias, old, silu=True)
    rows = ls.Rows.of([2], [tokens], [5])
    fixed: dict[str, Any] = {"weight": weight, "window": window, "bias": bias}
    drafts = ls.causal_conv1d_verify(x=x, rows=rows, **fixed)
    assert np.array_equal(window[2], old) and error(drafts.numpy(), o) <= F32
    head = ls.causal_conv1d_prefill(x=x[:6], rows=ls.Rows.of([2], [6], [5]), **fixed).numpy()
    tail = [
        ls.causal_conv1d_update(x=x[t : t + 1], rows=ls.Rows([2]), **fixed).numpy()
        for t in range(6, tokens)
    ]
    assert error(np.concatenate([head, *tail]), o) <= F32
    assert np.array_equal(window[2], w.astype(np.float32))


def test_norms() -> None:
    x, z, weight = normal(5, 6, 2, 16), normal(6, 6, 2, 16), normal(7, 16)
    scale = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5)
    assert error(ls.gated_rms_norm(x, z, weight), x * scale * weight * sigmoid(z)) <= F32
    y, gate, wide = x.reshape(6, 32), z.reshape(6, 32), normal(8, 32)
    groups = y.reshape(6, 4, 8).astype(np.float64)
    scale = np.repeat(1 / np.sqrt((groups**2).mean(-1) + 1e-6), 8, axis=1)
    got = ls.group_rms_norm(y, wide, gate=gate, num_groups=4, eps=1e-6)
    assert error(got, y * scale * wide * sigmoid(gate)) <= F32
    assert error(ls.rms_sum_sq(y, num_groups=4), (groups**2).sum(-1)) <= F32
    # A group over two ranks: both halves with the sum of both.
    total = ls.rms_sum_sq(y).numpy()
    parts = [
        ls.group_rms_norm(y[:, half], wide[half], sum_sq=total, group_channels=32, eps=1e-6).numpy()
        for half in (slice(0, 16), slice(16, 32))
    ]
    whole = ls.group_rms_norm(y, wide, eps=1e-6).numpy()
    assert error(np.concatenate(parts, 1), whole.astype(np.float64)) <= F32


def test_clear_and_copy_of_slots() -> None:
    planes = [normal(9, 4, 3), normal(10, 4, 2, 2)]
    before = [plane.copy() for plane in planes]
    ls.state_copy(planes, planes, [0, -1], [3, 2])
    ls.state_clear(planes, [1, 9])
    for plane, old in zip(planes, before, strict=True):
        assert np.array_equal(plane[3], old[0]) and np.array_equal(plane[2], old[2])
        assert not plane[1].any() and np.array_equal(plane[0], old[0])
    halves = np.zeros((1, 3), np.float16)
    ls.state_copy([planes[0]], [halves], [2], [0])
    assert np.array_equal(halves[0], planes[0][2].astype(np.float16))
    with pytest.raises(ls.errors.InvalidArgumentError):
        ls.state_copy(planes, planes, [0, 2], [3, 3])


def test_tree_from_links() -> None:
    #     0 -> 1, 3;  1 -> 2;  4 is nobody's
    parent = ls.tree_from_links([[1, 2, -1, -1, -1]], [[-1, 3, -1, -1, -1]])
    assert parent.numpy().tolist() == [[-1, 0, 1, 0, -1]]
    with pytest.raises(ls.errors.InvalidArgumentError):
        ls.tree_from_links([[1, 0]], [[-1, -1]])
