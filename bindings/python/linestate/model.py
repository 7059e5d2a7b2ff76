"""What a model's linear layers look like. No weights: shapes, forms and constants."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int64, sizeof
from dataclasses import dataclass

from ._abi import _constants as c
from ._abi._library import Handle, call, create, lib
from ._abi._params import array_of, choice, fill
from ._abi._structs import ls_layer_spec
from .kda_ops import BETAS, GATES
from .layer_ops import ACTIVATIONS
from .lightning_ops import SLOPE_RULES

KINDS = {"kda": c.LS_LAYER_KDA, "lightning": c.LS_LAYER_LIGHTNING}
VARIANTS = {"seg_la": c.LS_SEG_LA, "minimax": c.LS_MINIMAX}


def _name(value: int, names: dict[str, int]) -> str:
    return next(name for name, number in names.items() if number == value)


@dataclass(frozen=True)
class LayerSpec:
    """One linear layer. Zero counts take their defaults: value_heads = heads, v_dim = k_dim.

    kind: "kda" or "lightning". layer_id: global decoder layer. heads H, value_heads HV, k_dim K,
    v_dim V. KDA: conv_width W, conv_activation, gate_form, beta_form, lower_bound. Lightning:
    variant, slope_rule, norm_groups, norm_group_channels (0 = whole groups here).
    """

    kind: str
    heads: int
    k_dim: int
    layer_id: int = 0
    value_heads: int = 0
    v_dim: int = 0
    conv_width: int = 4
    conv_activation: str = "silu"
    gate_form: str = "softplus"
    beta_form: str = "logits"
    lower_bound: float = 0.0
    variant: str = "seg_la"
    slope_rule: str = "layer_over_last"
    norm_groups: int = 1
    norm_group_channels: int = 0
    norm_eps: float = 1e-5

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution, q | k | v; 0 for Lightning."""
        if self.kind != "kda":
            return 0
        value_heads, v_dim = self.value_heads or self.heads, self.v_dim or self.k_dim
        return 2 * self.heads * self.k_dim + value_heads * v_dim

    def struct(self) -> ls_layer_spec:
        """As the C interface takes it. Errors: ValueError for an unknown name."""
        return fill(
            ls_layer_spec,
            kind=choice("kind", self.kind, KINDS),
            layer_id=self.layer_id,
            num_heads=self.heads,
            num_value_heads=self.value_heads,
            k_dim=self.k_dim,
            v_dim=self.v_dim,
            conv_width=self.conv_width,
            conv_activation=choice("conv_activation", self.conv_activation, ACTIVATIONS),
            gate_form=choice("gate_form", self.gate_form, GATES),
            beta_form=choice("beta_form", self.beta_form, BETAS),
            lower_bound=self.lower_bound,
            variant=choice("variant", self.variant, VARIANTS),
            slope_rule=choice("slope_rule", self.slope_rule, SLOPE_RULES),
            norm_groups=self.norm_groups,
            norm_group_channels=self.norm_group_channels,
            norm_eps=self.norm_eps,
        )

    @classmethod
    def of(cls, s: ls_layer_spec) -> LayerSpec:
        """What the library says."""
        return cls(
            kind=_name(s.kind, KINDS),
            heads=s.num_heads,
            k_dim=s.k_dim,
            layer_id=s.layer_id,
            value_heads=s.num_value_heads,
            v_dim=s.v_dim,
            conv_width=s.conv_width,
            conv_activation=_name(s.conv_activation, ACTIVATIONS),
            gate_form=_name(s.gate_form, GATES),
            beta_form=_name(s.beta_form, BETAS),
            lower_bound=s.lower_bound,
            variant=_name(s.variant, VARIANTS),
            slope_rule=_name(s.slope_rule, SLOPE_RULES),
            norm_groups=s.norm_groups,
            norm_group_channels=s.norm_group_channels,
            norm_eps=s.norm_eps,
        )


class Model(Handle):
    """One rank's part of a model. Any number of threads may use one."""

    _destroy = "model_destroy"

    @classmethod
    def preset(cls, name: str, *, tp_rank: int = 0, tp_size: int = 1) -> Model:
        """A known model: `linestate.presets()` lists them.

        Errors: NotFoundError, InvalidArgumentError (the ranks do not divide the heads).
        """
        return cls(create("model_from_preset", name.encode(), tp_rank, tp_size))

    @classmethod
    def of(
        cls,
        layers: Sequence[LayerSpec],
        *,
        num_layers: int | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> Model:
        """From whole layers, layer_id rising; num_layers counts all decoder layers, and is the
        last layer's id + 1 when not given. Errors: InvalidArgumentError naming the field.
        """
        total = num_layers if num_layers is not None else max(one.layer_id for one in layers) + 1
        array = array_of(ls_layer_spec, [one.struct() for one in layers])
        return cls(create("model_from_layers", array, len(layers), total, tp_rank, tp_size))

    @property
    def layers(self) -> list[LayerSpec]:
        """This rank's part of every linear layer."""
        count = c_int64()
        call("model_num_linear_layers", self.pointer, byref(count))
        found = []
        for index in range(count.value):
            spec = ls_layer_spec()
            lib.ls_init(byref(spec), sizeof(spec))
            call("model_layer", self.pointer, index, byref(spec))
            found.append(LayerSpec.of(spec))
        return found
