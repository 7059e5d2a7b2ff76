"""KDA operators against the float64 recurrence."""

from __future__ import annotations

from typing import Any

import linestate as ls
import numpy as np
import pytest
from recurrence import error, kda, log_decay, sigmoid

H, HV, K, V, SLOTS = 2, 4, 32, 16, 5
F32, STATE = 1e-6, 5e-7


def inputs(tokens: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "q": normal(tokens, H, K),
        "k": normal(tokens, H, K),
        "v": normal(tokens, HV, V),
        "gate": normal(tokens, HV, K),
        "beta": normal(tokens, HV),
        "A_log": (0.5 * normal(HV)).astype(np.float32),
        "dt_bias": normal(HV, K),
        "state": normal(SLOTS, HV, V, K),
    }


def expected(x: dict[str, Any], span: slice, state: Any, form: str, bound: float) -> Any:
    g = log_decay(x["gate"][span], x["A_log"], x["dt_bias"], form, bound)
    return kda(x["q"][span], x["k"][span], x["v"][span], g, sigmoid(x["beta"][span]), state)


@pytest.mark.parametrize("kernel", [None, "cpu", "ref"])
@pytest.mark.parametrize(("form", "bound"), [("softplus", 0.0), ("bounded", -5.0)])
def test_prefill_of_mixed_rows(kernel: str | None, form: str, bound: float) -> None:
    lengths, slots, starts = [70, 1, 33], [3, 0, 4], [0, 64, 128]
    x = inputs(sum(lengths), 1)
    before = x["state"].copy()
    rows = ls.Rows.of(slots, lengths, starts)
    out = ls.kda_prefill(**x, rows=rows, gate_form=form, lower_bound=bound, kernel=kernel)
    assert out.dtype == "f32" and out.shape == (sum(lengths), HV, V)
    begin = 0
    for length, slot, start in zip(lengths, slots, starts, strict=True):
        span = slice(begin, begin + length)
        old = before[slot] if start else np.zeros_like(before[slot])
        o, s = expected(x, span, old, form, bound)
        assert error(out.numpy()[span], o) <= F32
        assert error(x["state"][slot], s) <= STATE
        begin += length
    untouched = [1, 2]
    assert np.array_equal(x["state"][untouched], before[untouched])


def test_decode_continues_a_prefill() -> None:
    tokens = 40
    x = inputs(tokens, 2)
    o, s = expected(x, slice(None), np.zeros((HV, V, K)), "softplus", 0.0)
    state = x.pop("state")
    fixed = {name: x.pop(name) for name in ("A_log", "dt_bias")}
    head = {name: value[:30] for name, value in x.items()}
    parts = [ls.kda_prefill(**head, **fixed, state=state, rows=ls.Rows.of([2], [30])).numpy()]
    for t in range(30, tokens):
        one = {name: value[t : t + 1] for name, value in x.items()}
        out = ls.kda_decode(**one, **fixed, state=state, rows=ls.Rows([2]))
        parts.append(out.numpy())
    assert error(np.concatenate(parts), o) <= F32
    assert error(state[2], s) <= STATE


def test_snapshots_and_padding() -> None:
    x = inputs(100, 3)
    x["state"][:] = np.nan
    rows = ls.Rows.of([1, -1], [80, 20])
    plan = ls.Snapshots(row=[0], position=[64], slot=[4])
    out = ls.kda_prefill(**x, rows=rows, snapshots=plan).numpy()
    _, at_64 = expected(x, slice(0, 64), np.zeros((HV, V, K)), "softplus", 0.0)
    assert error(x["state"][4], at_64) <= STATE
    assert not out[80:].any()
    assert np.isnan(x["state"][[0, 2, 3]]).all()


def test_verify_of_a_tree_and_commit() -> None:
    x = inputs(5, 4)
    parent = [-1, 0, 0, 2, 2]
    old = x["state"][1].copy()
    record = ls.KdaRecord.empty(5, heads=H, value_heads=HV, k_dim=K, v_dim=V, dtype="f32")
    rows = ls.Rows.of([1], [5], [7])
    out = ls.kda_verify(**x, rows=rows, record=record, parent=parent).numpy()
    assert np.array_equal(x["state"][1], old)
    for path in ([0, 1], [0, 2, 3], [0, 2, 4]):
        o, _ = expected(x, np.array(path), old, "softplus", 0.0)  # type: ignore[arg-type]
        assert error(out[path], o) <= F32
    ls.kda_commit(rows, record, [4], x["state"], parent=parent)
    _, s = expected(x, np.array([0, 2, 4]), old, "softplus", 0.0)  # type: ignore[arg-type]
    assert error(x["state"][1], s) <= STATE


def test_bf16_in_and_out() -> None:
    x = inputs(50, 5)
    for name in ("q", "k", "v"):
        x[name] = ls.to_bf16(x[name])
    out = ls.kda_prefill(**x, rows=ls.Rows.of([0], [50]))
    assert out.dtype == "bf16"
    exact = {
        name: (one.float32() if isinstance(one, ls.Tensor) else one) for name, one in x.items()
    }
    o, s = expected(exact, slice(None), np.zeros((HV, V, K)), "softplus", 0.0)
    rounding = error(ls.to_bf16(o).float32(), o)
    assert error(out.float32(), o) <= 1.05 * rounding
    assert error(x["state"][0], s) <= STATE


def test_views_are_read_in_place() -> None:
    x = inputs(12, 6)
    plain = ls.kda_prefill(**{**x, "state": x["state"].copy()}, rows=ls.Rows.of([0], [12])).numpy()
    packed = np.concatenate([x[n].reshape(12, -1) for n in ("q", "k", "v")], 1)
    wide = np.zeros((12, packed.shape[1] + 7), np.float32)
    wide[:, 3:-4] = packed
    q, k, v = ls.split_packed_qkv(wide[:, 3:-4], heads=H, value_heads=HV, k_dim=K, v_dim=V)
    room = np.full((12, HV, 2 * V), 7.0, np.float32)
    out = ls.kda_prefill(
        **{**x, "q": q, "k": k, "v": v}, rows=ls.Rows.of([0], [12]), out=room[..., ::2]
    )
    assert np.array_equal(room[..., ::2], plain) and (room[..., 1::2] == 7.0).all()
    assert np.shares_memory(out.numpy(), room)


def test_errors_carry_the_text() -> None:
    x = inputs(3, 7)
    rows = ls.Rows.of([0], [3])
    with pytest.raises(ValueError, match="v: expected") as caught:
        ls.kda_prefill(**{**x, "v": x["v"][:2]}, rows=rows, out=np.empty((3, HV, V), np.float32))
    assert isinstance(caught.value, ls.errors.InvalidArgumentError)
    assert caught.value.status_name == "invalid_argument"
    frozen = np.empty((3, HV, V), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out: expected writable"):
        ls.kda_prefill(**x, rows=rows, out=frozen)
    with pytest.raises(ValueError, match="gate_form: expected one of softplus"):
        ls.kda_prefill(**x, rows=rows, gate_form="clamp")
    with pytest.raises(ls.errors.LinestateError, match="nonesuch"):
        ls.kda_prefill(**x, rows=rows, kernel="nonesuch")


def test_explain_computes_nothing() -> None:
    x = inputs(3, 8)
    before = x["state"].copy()
    text = ls.explain(ls.kda_prefill, **x, rows=ls.Rows.of([0], [3]))
    assert text.startswith("kda_prefill: ")
    assert np.array_equal(x["state"], before)


def test_threads_change_no_bit() -> None:
    x = inputs(90, 9)
    outs = []
    for threads in (1, 2, 3):
        state = x["state"].copy()
        context = ls.Context(num_threads=threads)
        rows = ls.Rows.of([0, 1, 2], [30, 30, 30])
        outs.append(ls.kda_prefill(**{**x, "state": state}, rows=rows, context=context).numpy())
    assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])
