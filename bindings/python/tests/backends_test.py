"""Models, pools, batches, backends: what a serving engine does, against operators and formulas."""

from __future__ import annotations

from typing import Any

import linestate as ls
import numpy as np
import pytest
from recurrence import conv, error, kda, lightning, log_decay, sigmoid

H, HV, D, W = 2, 4, 16, 4
LAYERS = [
    ls.LayerSpec("kda", heads=H, value_heads=HV, k_dim=D),
    ls.LayerSpec("lightning", heads=H, k_dim=D, layer_id=1),
]
CHANNELS = LAYERS[0].conv_channels


def normal(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


class Engine:
    """Both layers with fixed weights; activations are functions of the token's number."""

    def __init__(self, slots: int = 6, **spec: Any) -> None:
        rng = np.random.default_rng(0)
        self.model = ls.Model.of(LAYERS)
        self.spec = ls.PoolSpec(self.model, state_dtype="f32", window_dtype="f32", **spec)
        self.pool = ls.Pool.create(self.spec, slots)
        self.kda, self.lightning = ls.KdaBackend(self.model), ls.LightningBackend(self.model)
        self.metadata = ls.ForwardMetadata(8, verify_tokens=32, max_snapshots=4)
        self.slopes = ls.lightning_slopes(H, 1, 2)
        self.weights = ls.KdaWeights(
            normal(rng, CHANNELS, W), normal(rng, HV) * 0.3, normal(rng, HV, D)
        )
        self.qkv, self.gate = normal(rng, 300, CHANNELS), normal(rng, 300, HV, D)
        self.beta, self.q = normal(rng, 300, HV), normal(rng, 300, H, D)
        self.k, self.v = normal(rng, 300, H, D), normal(rng, 300, H, D)

    def step(self, rows: list[ls.Row], tokens: Any, records: Any = None, **batch: Any) -> Any:
        """Both layers over the rows; `tokens` are the numbers of the packed tokens."""
        tokens = np.asarray(tokens)
        self.metadata.prepare(rows, self.pool, **batch)
        extra: dict[str, Any] = {}
        if records is not None:
            extra["record"], extra["record_x"] = records.kda(0)
        a = self.kda.forward(
            0,
            self.weights,
            self.metadata,
            self.pool,
            qkv=self.qkv[tokens],
            gate=self.gate[tokens],
            beta=self.beta[tokens],
            **extra,
        )
        b = self.lightning.forward(
            1,
            ls.LightningWeights(self.slopes),
            self.metadata,
            self.pool,
            q=self.q[tokens],
            k=self.k[tokens],
            v=self.v[tokens],
            record=None if records is None else records.lightning(1),
        )
        return a.numpy().copy(), b.numpy().copy()

    def expected(self, tokens: Any) -> Any:
        """A fresh sequence, in float64."""
        tokens = np.asarray(tokens)
        w = self.weights
        x, _ = conv(self.qkv[tokens], w.conv_weight, 0.0, np.zeros((CHANNELS, W - 1)), silu=True)
        q, k, v = np.split(x, [H * D, 2 * H * D], axis=1)
        g = log_decay(self.gate[tokens], w.A_log, w.dt_bias, "softplus", 0.0)
        shape = (len(tokens), -1, D)
        parts = (q.reshape(shape), k.reshape(shape), v.reshape(shape))
        a, _ = kda(*parts, g, sigmoid(self.beta[tokens]), np.zeros((HV, D, D)))
        scale = D**-0.5
        parts = (self.q[tokens], self.k[tokens], self.v[tokens])
        b, _ = lightning(*parts, self.slopes, np.zeros((H, D, D)), scale)
        return a, b


def test_mixed_batches_equal_the_sequences_alone() -> None:
    engine = Engine()
    first, second = engine.pool.allocate(), engine.pool.allocate()
    one, two = np.arange(0, 71), np.arange(100, 140)
    a, b = engine.step([ls.Row(first, "extend", 0, 70)], one[:70])
    rows = [ls.Row(first, "decode", 70, 1), ls.Row(second, "extend", 0, 40), ls.Row(tokens=3)]
    mixed = engine.step(rows, [*one[70:], *two, 0, 0, 0], token_capacity=0)
    for got, mixed_got, of_one, of_two in zip(
        (a, b), mixed, engine.expected(one), engine.expected(two), strict=True
    ):
        assert error(np.concatenate([got, mixed_got[:1]]), of_one) <= 2e-6
        assert error(mixed_got[1:41], of_two) <= 2e-6
        assert not mixed_got[41:].any()
    counts = engine.metadata.counts
    assert (counts.num_rows, counts.num_tokens, counts.num_prefills) == (3, 44, 1)
    segment = engine.metadata.segment("decode")
    assert segment is not None and segment.slot is not None
    assert segment.slot.numpy().tolist() == [first] and segment.token_end == 1
    assert engine.metadata.segment("verify") is None


def test_verify_and_commit_equal_decoding() -> None:
    engine = Engine()
    slot = engine.pool.allocate()
    prompt, drafts = np.arange(20), np.array([50, 51, 52, 53])
    engine.step([ls.Row(slot, "extend", 0, 20)], prompt)
    records = ls.VerifyRecords(engine.model, 8, dtype="f32")
    parent = [-1, 0, 0, 2]
    row = ls.Row(slot, "verify", 20, 4)
    a, b = engine.step([row], drafts, records, parent=parent)
    path = [*prompt, 50, 52, 53]
    for got, expected in zip((a, b), engine.expected(path), strict=True):
        assert error(got[[0, 2, 3]], expected[20:]) <= 2e-6
    record, x = records.kda(0)
    common = (engine.metadata, engine.pool)
    engine.kda.commit(0, *common, record=record, record_x=x, accepted_node=[3])
    weights = ls.LightningWeights(engine.slopes)
    engine.lightning.commit(1, weights, *common, record=records.lightning(1), accepted_node=[3])
    after = engine.step([ls.Row(slot, "decode", 23, 1)], [60])
    for got, expected in zip(after, engine.expected([*path, 60]), strict=True):
        assert error(got, expected[23:]) <= 2e-6
    assert ls.VerifyRecords.bytes_per_token(engine.model, "f32") > 0


def test_prefix_cache_with_snapshots() -> None:
    engine = Engine()
    pool = engine.pool
    cache = ls.PrefixCache(10 * engine.spec.bytes_per_slot, engine.spec.bytes_per_slot)
    prompt = np.arange(100)
    assert cache.match(prompt) is None
    slot, kept = pool.allocate(), pool.allocate()
    request = ls.SnapshotRequest(row=0, position=64, slot=kept)
    first = engine.step([ls.Row(slot, "extend", 0, 100)], prompt, snapshots=[request])
    assert engine.metadata.snapshot_taken(0)
    pool.mark_snapshot(kept, 64)
    assert pool.snapshot_position(kept) == 64
    assert cache.insert(prompt, 64, kept) == ("inserted", [])
    other = pool.allocate()
    lease = cache.match(prompt)
    assert lease is not None
    with lease:
        row = ls.Row(other, "extend", lease.position, 36)
        second = engine.step([row], prompt[64:], copy=[(lease.slot, other)])
        with pytest.raises(ls.errors.FailedPreconditionError, match="is held by 1"):
            cache.erase(prompt, 64)
    for whole, tail in zip(first, second, strict=True):
        assert np.array_equal(whole[64:], tail)
    assert cache.contains(prompt, 64)
    assert cache.insert(prompt, 64, other) == ("duplicate", [other])
    stats = cache.stats()
    assert (stats.lookups, stats.hits, stats.hit_tokens, stats.entries) == (2, 1, 64, 1)
    assert cache.evict(5) == [kept] and cache.clear() == []
    assert cache.insert(prompt, 64, kept) == ("inserted", [])
    lease = cache.match(prompt)
    assert lease is not None and cache.take(lease) == kept


def test_slots_come_and_go() -> None:
    pool = Engine(slots=2).pool
    slots = [pool.allocate(), pool.allocate()]
    assert slots == [0, 1] and pool.free_slots == 0 and pool.allocated(1)
    with pytest.raises(ls.errors.ResourceExhaustedError):
        pool.allocate()
    passed = False
    pool.retire(0, lambda: passed)
    assert pool.in_flight_slots == 1 and pool.free_slots == 0
    passed = True
    assert pool.free_slots == 1 and pool.allocate() == 0
    pool.free(1)
    with pytest.raises(ls.errors.InvalidArgumentError):
        pool.free(1)
    pool.release_memory()
    assert not pool.memory_bound
    with pytest.raises(ls.errors.FailedPreconditionError):
        pool.recurrent(0)
    pool.rebind_memory()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.free_slots  # noqa: B018


def test_adopted_memory_and_packs() -> None:
    engine = Engine()
    slot = engine.pool.allocate()
    engine.step([ls.Row(slot, "extend", 0, 30)], np.arange(30))
    state = np.full((3, 2, HV, D, D), 5.0, np.float32)[:, 0]
    window = np.zeros((3, CHANNELS, W - 1), np.float32)
    other = np.zeros((3, H, D, D), np.float32)
    adopted = ls.Pool.adopt(engine.spec, [(state, window), (other, None)])
    assert adopted.allocate() == 0
    packed = engine.pool.pack(slot, 30)
    assert len(packed) == engine.spec.pack_bytes()
    assert adopted.unpack(packed, 0) == 30
    assert np.array_equal(state[0], engine.pool.recurrent(0).numpy()[slot])
    assert np.array_equal(other[0], engine.pool.recurrent(1).numpy()[slot])
    kept = engine.pool.conv_window(0)
    assert kept is not None and np.array_equal(window[0], kept.numpy()[slot])
    assert (state[1] == 5.0).all()
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 1
    with pytest.raises(ls.errors.DataLossError):
        adopted.unpack(bytes(damaged), 0)
    assert engine.spec.pack_bytes("int8") < engine.spec.pack_bytes("f16") < len(packed)


def test_a_pool_with_replay_rings() -> None:
    slopes = ls.lightning_slopes(H, 1, 2)
    engine = Engine(replay_length=4, replay_slopes=[None, slopes])
    slot = engine.pool.allocate()
    engine.step([ls.Row(slot, "extend", 0, 20)], np.arange(20))
    got = [engine.step([ls.Row(slot, "decode", t, 1)], [t]) for t in range(20, 26)]
    engine.pool.fold([slot])
    for layer, expected in enumerate(engine.expected(np.arange(26))):
        assert error(np.concatenate([one[layer] for one in got]), expected[20:]) <= 2e-6


def test_presets_and_sizes() -> None:
    whole, part = ls.Model.preset("kimi-linear"), ls.Model.preset("kimi-linear", tp_size=4)
    assert len(whole.layers) == len(part.layers) == 20
    assert whole.layers[0].heads == 4 * part.layers[0].heads
    spec = ls.PoolSpec(part)
    assert spec.max_slots(10 * spec.bytes_per_slot + 1) == 10
    assert ls.PoolSpec(whole).bytes_per_slot == 4 * spec.bytes_per_slot
    with pytest.raises(LookupError, match="kimi-linear"):
        ls.Model.preset("kimi-cubic")


def test_a_bad_batch_names_row_and_field() -> None:
    engine = Engine()
    with pytest.raises(ls.errors.InvalidArgumentError, match=r"rows\[0\]|row 0"):
        engine.metadata.prepare([ls.Row(0, "decode", 4, 2)], engine.pool)
    with pytest.raises(ValueError, match="kind: expected one of extend"):
        engine.metadata.prepare([ls.Row(0, "prefill", 0, 2)], engine.pool)


def test_explain_a_forward_pass() -> None:
    engine = Engine()
    text = ls.explain(engine.step, [ls.Row(0, "extend", 0, 5)], np.arange(5))
    assert "causal_conv1d_prefill: " in text and "lightning_prefill: " in text
