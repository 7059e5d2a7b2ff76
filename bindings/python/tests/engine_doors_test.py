"""What an engine needs besides layers: restores, transfer, kernels of its own, devices."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import linestate as ls
import numpy as np
import pytest

H, D = 2, 16
MODEL = [
    ls.LayerSpec("kda", heads=H, k_dim=D),
    ls.LayerSpec("lightning", heads=H, k_dim=D, layer_id=1),
]


def filled_pool(seed: int, slots: int = 3, **spec: Any) -> ls.Pool:
    pool = ls.Pool.create(ls.PoolSpec(ls.Model.of(MODEL), window_dtype="f32", **spec), slots)
    rng = np.random.default_rng(seed)
    for plane in pool.planes():
        plane.numpy()[...] = rng.standard_normal(plane.shape)
    return pool


def same_slots(a: ls.Pool, slot: int, b: ls.Pool, other: int) -> bool:
    pairs = zip(a.planes(), b.planes(), strict=True)
    return all(np.array_equal(x.numpy()[slot], y.numpy()[other]) for x, y in pairs)


def test_a_batch_restores_packs() -> None:
    source, target = filled_pool(1), filled_pool(2)
    slot = target.allocate()
    pack = source.pack(1, 64)
    metadata = ls.ForwardMetadata(2)
    row = ls.Row(slot, "extend", 64, 3)
    metadata.prepare([row], target, restores=[ls.SlotRestore(pack, slot)])
    assert same_slots(source, 1, target, slot)
    with pytest.raises(ls.errors.DataLossError):
        metadata.prepare([row], target, restores=[ls.SlotRestore(pack[:-1], slot)])


def test_a_pack_says_what_it_is() -> None:
    info = ls.read_slot_pack(filled_pool(3).pack(2, 128, "f16"))
    assert (info.position, info.scheme, info.state_dtype) == (128, "f16", "f32")
    assert info.numerics_version == ls.numerics_version() and info.window_dtype == "f32"
    assert [(one.layer_id, one.layout, one.heads) for one in info.layers] == [
        (0, "vk", H),
        (1, "kv", H),
    ]
    assert info.layers[0].conv_channels == 3 * H * D and info.layers[1].conv_tail == 0
    with pytest.raises(ls.errors.DataLossError):
        ls.read_slot_pack(b"nothing")


def test_slots_move_by_descriptors() -> None:
    source, target = filled_pool(4), filled_pool(5)
    pairs = list(zip(source.transfer_descriptors(), target.transfer_descriptors(), strict=True))
    assert [a.part for a, _ in pairs] == ["recurrent", "conv_q", "conv_k", "conv_v", "recurrent"]
    assert sum(a.bytes_per_slot for a, _ in pairs) == source.spec.bytes_per_slot
    for a, b in pairs:
        ls.check_transferable(a, b)
        assert sum(size for _, size in a.runs(2)) == a.bytes_per_slot
        for (read, size), (write, _) in zip(a.runs(2), b.runs(0), strict=True):
            ctypes.memmove(write, read, size)
    assert same_slots(source, 2, target, 0)
    assert pairs[0][0].slot_contiguous
    with pytest.raises(ls.errors.InvalidArgumentError, match="part"):
        ls.check_transferable(pairs[1][0], pairs[2][0])
    with pytest.raises(ValueError, match="slot: expected 0 to 2"):
        pairs[0][0].runs(3)


def test_rings_of_a_pool() -> None:
    pool = filled_pool(6, replay_length=4, replay_slopes=[None, ls.lightning_slopes(H, 1, 2)])
    kda, lightning = pool.replay_ring(0), pool.replay_ring(1)
    assert ls.tensor(kda.keys).shape == (3, H, 3, D) and kda.gamma is not None
    assert ls.tensor(lightning.values).shape == (3, H, 3, D) and lightning.gamma is None
    assert pool.replay_cursor().numpy().tolist() == [0, 0, 0]
    with pytest.raises(ls.errors.FailedPreconditionError):
        filled_pool(7).replay_cursor()


def test_a_kernel_in_python() -> None:
    x, weight = np.ones((2, 1, 16), np.float32), np.full(16, 2.0, np.float32)
    seen: list[Any] = []

    def run(call: ls.KernelCall) -> None:
        seen.append((call.member("eps"), call.member("weight").numpy().copy()))
        call.member("out").numpy()[...] = 7.0

    def refuse(call: ls.KernelCall) -> str | None:
        return None if call.member("x").shape[0] == 2 else "only two tokens"

    with ls.register_kernel("gated_rms_norm", "sevens", run, refuse=refuse, summary="all 7"):
        gc.collect()
        assert (ls.gated_rms_norm(x, x, weight, eps=0.5).numpy() == 7.0).all()
        assert seen[0][0] == 0.5 and np.array_equal(seen[0][1], weight)
        assert any(one.kernel == "sevens" for one in ls.kernels())
        assert "only two tokens" in ls.explain(ls.gated_rms_norm, x[:1], x[:1], weight)
        assert (ls.gated_rms_norm(x[:1], x[:1], weight).numpy() != 7.0).all()
    assert (ls.gated_rms_norm(x, x, weight).numpy() != 7.0).all()


def test_members_behind_pointers_and_scratch() -> None:
    q, slopes = np.ones((1, H, D), np.float32), np.zeros(H, np.float32)
    state = np.zeros((2, H, D, D), np.float32)

    def run(call: ls.KernelCall) -> None:
        assert call.member("snapshots") is None
        slot, start = call.member("rows.slot"), call.member("rows.start")
        assert slot.numpy().tolist() == [1] and start is None
        assert call.context.workspace_bytes >= 4096
        call.member("state").numpy()[1] = 3.0

    kernel = ls.register_kernel("lightning_decode", "mine", run, workspace_bytes=lambda call: 4096)
    ls.lightning_decode(q=q, k=q, v=q, slopes=slopes, state=state, rows=ls.Rows([1]))
    kernel.unregister()
    kernel.unregister()
    assert (state[1] == 3.0).all() and not state[0].any()


def test_errors_of_kernels() -> None:
    x = np.ones((2, 1, 16), np.float32)

    def broken(call: ls.KernelCall) -> None:
        raise KeyError("nothing there")

    def careful(call: ls.KernelCall) -> None:
        raise ls.errors.UnsupportedError("not on Sundays")

    with ls.register_kernel("gated_rms_norm", "broken", broken):
        with pytest.raises(ls.errors.InternalError, match="KeyError: 'nothing there'"):
            ls.gated_rms_norm(x, x, x[0, 0])
        with pytest.raises(ls.errors.InvalidArgumentError, match="broken"):
            ls.register_kernel("gated_rms_norm", "broken", broken)
    with (
        ls.register_kernel("gated_rms_norm", "careful", careful),
        pytest.raises(ls.errors.UnsupportedError, match="not on Sundays"),
    ):
        ls.gated_rms_norm(x, x, x[0, 0])
    with pytest.raises(ls.errors.NotFoundError, match="expected one of"):
        ls.register_kernel("kda", "one", broken)


def test_the_cpu_as_a_device() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    stream = ls.Stream("cpu")
    copy = ls.tensor(values).to("cpu", stream=stream)
    assert stream.handle == 0 and np.array_equal(copy.numpy(), values)
    assert not np.shares_memory(copy.numpy(), values)
    stream.synchronize()
    ls.synchronize("cpu")
    with pytest.raises(ls.errors.InvalidArgumentError, match="src: expected size 2"):
        copy.copy_from(values.T.copy())
    with pytest.raises(ls.errors.InvalidArgumentError, match="src: expected a dense"):
        copy.copy_from(values[:, ::-1])
    rows = ls.Rows.of([1, 0], [2, 1]).to("cpu")
    assert rows.start is not None and rows.start.numpy().tolist() == [0, 0]
    memory = ls.Memory(100, "cpu")
    assert memory.address % 256 == 0 and ls.Memory(0, "cpu").address == 0
    status = ls.DeviceStatus("cpu", stream=stream)
    assert status.flags() == set() and status.overflow() == (-1, -1)


DEVICES = [one.device for one in ls.devices()]
if "cuda:0" in DEVICES:
    DEVICES = ["cpu", "cuda:0"]


@pytest.mark.parametrize("device", DEVICES)
def test_operators_on_every_device(device: str) -> None:
    rng = np.random.default_rng(8)
    x = {n: rng.standard_normal((3, H, D)).astype(np.float32) for n in ("q", "k", "v")}
    slopes, state = ls.lightning_slopes(H, 1, 2), np.zeros((2, H, D, D), np.float32)
    expected = ls.lightning_prefill(
        **x, slopes=slopes, state=state, rows=ls.Rows.of([1], [3]), kernel="ref"
    ).numpy()
    stream, status = ls.Stream(device), ls.DeviceStatus(device)
    context = ls.Context(device=device, stream=stream, status=status, check_finite=True)
    there = {n: ls.tensor(one).to(device, stream=stream) for n, one in x.items()}
    pool = ls.tensor(np.zeros_like(state)).to(device, stream=stream)
    out = ls.lightning_prefill(
        **there,
        slopes=ls.tensor(slopes).to(device, stream=stream),
        state=pool,
        rows=ls.Rows.of([1], [3]).to(device, stream=stream),
        context=context,
    )
    stream.synchronize()
    assert out.device == ls.tensor(there["q"]).device
    assert np.allclose(out.to("cpu").numpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.allclose(pool.to("cpu").numpy(), state, rtol=1e-4, atol=1e-5)
    assert status.flags() == set()


class Foreign:
    """Memory of somebody else's, of any device, behind the DLPack interface."""

    def __init__(self, view: ls.Tensor) -> None:
        self.__dlpack__, self.__dlpack_device__ = view.__dlpack__, view.__dlpack_device__


@pytest.mark.parametrize("device", DEVICES)
def test_dlpack_on_every_device(device: str) -> None:
    values = np.arange(12, dtype=np.int32).reshape(3, 4)
    there = ls.tensor(values).to(device)
    again = ls.tensor(Foreign(there))
    assert again.device == there.device and again.struct.data == there.struct.data
    del there
    gc.collect()
    assert np.array_equal(again.to("cpu").numpy(), values)


@pytest.mark.parametrize("device", DEVICES)
def test_a_layer_on_every_device(device: str) -> None:
    model, rng = ls.Model.of(MODEL), np.random.default_rng(9)
    x = {n: rng.standard_normal((4, H, D)).astype(np.float32) for n in ("q", "k", "v")}
    outs = []
    for where in ("cpu", device):
        context = ls.Context(device=where)
        pool = ls.Pool.create(ls.PoolSpec(model, window_dtype="f32"), 2, device=where)
        metadata = ls.ForwardMetadata(2, device=where)
        metadata.prepare([ls.Row(pool.allocate(), "extend", 0, 4)], pool, context=context)
        out = ls.LightningBackend(model).forward(
            1,
            ls.LightningWeights(ls.tensor(ls.lightning_slopes(H, 1, 2)).to(where)),
            metadata,
            pool,
            **{n: ls.tensor(one).to(where) for n, one in x.items()},
            context=context,
        )
        ls.synchronize(where)
        assert pool.recurrent(1).device == out.device
        outs.append(out.to("cpu").numpy())
    assert np.allclose(outs[0], outs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", ("cpu", -1)])
def test_unknown_devices(device: Any) -> None:
    with pytest.raises(ValueError, match="device: expected"):
        ls.empty((2,), "f32", device)


HAS_CUDA = any(one.device.startswith("cuda") for one in ls.devices())


def test_a_gpu_that_is_not_there() -> None:
    device = "cuda:99" if HAS_CUDA else "cuda"
    for make in (
        lambda: ls.empty((2,), "f32", device),
        lambda: ls.Stream(device),
        lambda: ls.Pool.create(ls.PoolSpec(ls.Model.of(MODEL)), 2, device=device),
        lambda: ls.ForwardMetadata(2, device=device),
        lambda: ls.VerifyRecords(ls.Model.of(MODEL), 4, device=device),
        lambda: ls.DeviceStatus(device),
    ):
        with pytest.raises((ls.errors.UnsupportedError, ls.errors.DeviceError)):
            make()
    tensors = {n: np.zeros((1, H, D), np.float32) for n in ("q", "k", "v")}
    with pytest.raises(ls.errors.LinestateError):
        ls.lightning_decode(
            **tensors,
            slopes=np.zeros(H, np.float32),
            state=np.zeros((1, H, D, D), np.float32),
            rows=ls.Rows([0]),
            context=ls.Context(device=device),
        )


def test_calls_name_what_is_missing() -> None:
    x = np.zeros((1, H, D), np.float32)
    with pytest.raises(TypeError, match="LightningSnapshotCall: missing rows, slopes, state"):
        ls.lightning_decode(q=x, k=x, v=x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected scales"):
        ls.lightning_decode(  # type: ignore[call-arg]
            q=x, k=x, v=x, slopes=x, state=x, rows=ls.Rows([0]), scales=1.0
        )
