"""The recurrences in float64, written from their formulas and sharing nothing with the library."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-np.asarray(x, np.float64)))


def log_decay(a: Array, A_log: Array, dt_bias: Array, form: str, lower_bound: float) -> Array:
    """[T, HV, K] from the gate tensor."""
    a = np.asarray(a, np.float64)
    if form == "activated":
        return a
    rate = np.exp(np.asarray(A_log, np.float64))[:, None]
    shifted = a + dt_bias
    if form == "softplus":
        return -rate * np.logaddexp(0.0, shifted)
    return lower_bound * sigmoid(rate * shifted)


def unit(x: Array) -> Array:
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def kda(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, scale: float | None = None
) -> tuple[Array, Array]:
    """One sequence. q, k [T, H, K], v [T, HV, V], g [T, HV, K] log decay, beta [T, HV],
    state [HV, V, K]. Returns outputs and the final state."""
    q, k, v = unit(q), unit(k), np.asarray(v, np.float64)
    tokens, value_heads, _ = v.shape
    group = value_heads // q.shape[1]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    state = np.array(state, np.float64)
    out = np.zeros(v.shape)
    for t in range(tokens):
        for j in range(value_heads):
            key, query = k[t, j // group], q[t, j // group]
            state[j] *= np.exp(g[t, j])
            u = beta[t, j] * (v[t, j] - state[j] @ key)
            state[j] += np.outer(u, key)
            out[t, j] = scale * (state[j] @ query)
    return out, state


def lightning(
    q: Array, k: Array, v: Array, slopes: Array, state: Array, scale: float
) -> tuple[Array, Array]:
    """One sequence. q, k, v [T, H, D], state [H, K, V]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    state = np.array(state, np.float64)
    decay = np.exp(-np.asarray(slopes, np.float64))
    out = np.zeros(v.shape)
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            state[h] = decay[h] * state[h] + np.outer(k[t, h], v[t, h])
            out[t, h] = scale * (q[t, h] @ state[h])
    return out, state


def conv(x: Array, weight: Array, bias: Array, window: Array, silu: bool) -> tuple[Array, Array]:
    """One sequence. x [T, channels], window [channels, W - 1]. Outputs and the new window."""
    taps = weight.shape[1]
    padded = np.concatenate([np.asarray(window, np.float64).T, np.asarray(x, np.float64)])
    out = np.stack(
        [(padded[t : t + taps] * np.asarray(weight, np.float64).T).sum(0) for t in range(len(x))]
    )
    out = out + bias
    return (out * sigmoid(out) if silu else out), padded[len(padded) - taps + 1 :].T


def error(got: Array, expected: Array) -> float:
    """Relative root mean square."""
    got = np.asarray(got, np.float64)
    norm = float(np.sqrt((expected * expected).mean()))
    return float(np.sqrt(((got - expected) ** 2).mean())) / norm
