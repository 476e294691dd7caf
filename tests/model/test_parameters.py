"""The table of parameters says of every model what torch says, and the C engines read it in its order."""

import re
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.config import ModelConfig
from gpt_cli.cpu.common import c_model
from gpt_cli.cpu.decode.weights import LayerWeights
from gpt_cli.model.parameters import (
    BLOCK_SLOTS,
    NETWORK_SLOTS,
    block_parameters,
    gate_up_rows,
    network_parameters,
    parameters,
    qkv_rows,
)
from gpt_cli.model.sizing import build_on_meta

HEADER = (Path(c_model.__file__).parent / "parameters.h").read_text()
CHOICES: dict[str, tuple[Any, ...]] = {
    "bias": (False, True), "tie_embeddings": (False, True), "qk_norm": (False, True), "norm_gain": (False, True),
    "embedding_norm": (False, True), "norm": ("layernorm", "rmsnorm"), "norm_position": ("pre", "post"),
}  # fmt: skip
OTHERS = [
    {"mlp": "swiglu", "position": "rope", "n_kv_head": 2, "mlp_ratio": 1.3},
    {"mlp": "gelu", "position": "learned", "n_kv_head": None, "mlp_ratio": None},
    {"mlp": "relu", "position": "sinusoidal", "n_kv_head": 1, "mlp_ratio": 1.3},
    {"mlp": "relu2", "position": "alibi", "n_kv_head": 2, "mlp_ratio": None, "head_gate": True},
    {"mlp": "swiglu", "position": "none", "n_kv_head": None, "mlp_ratio": None},
]


@pytest.mark.parametrize("other_options", OTHERS, ids=str)
def test_the_table_names_the_parameters_of_torch_with_their_shapes(other_options: dict[str, Any]) -> None:
    for values in product(*CHOICES.values()):
        options = dict(zip(CHOICES, values, strict=True)) | other_options
        if options["norm"] == "layernorm" and not options["norm_gain"]:
            continue
        config = ModelConfig(n_layer=2, n_head=4, n_embd=32, context_length=8, **options)
        expected = {name: tuple(tensor.shape) for name, tensor in build_on_meta(config, 11).state_dict().items()}
        actual = [(parameter.name, parameter.shape) for parameter in parameters(config, 11)]
        assert sorted(actual) == sorted(expected.items()), options


def test_stacked_rows_are_all_rows_of_their_matrix() -> None:
    config = ModelConfig(n_head=4, n_kv_head=2, n_embd=32)
    own = block_parameters(config, 0)
    assert own["qkv"].rows == qkv_rows(config)
    assert own["up"].rows == gate_up_rows(config)
    for parameter in parameters(config, 11):
        assert not parameter.rows or sum(parameter.rows) == parameter.shape[0]


def test_the_c_engines_read_the_slots_and_fields_in_the_order_of_the_table() -> None:
    macro = dict(re.findall(r"#define (\w+_PARAMETERS)\(X\)((?:.*\\\n)*.*)\n", HEADER))
    assert tuple(re.findall(r"X\((\w+),", macro["BLOCK_PARAMETERS"])) == BLOCK_SLOTS
    assert tuple(re.findall(r"X\((\w+),", macro["NETWORK_PARAMETERS"])) == NETWORK_SLOTS
    assert tuple(field.name for field in fields(LayerWeights)) == BLOCK_SLOTS
    model = HEADER.partition("#define MODEL_FIELDS")[2].partition("\n\n")[0]
    declared = [
        (name, kind) for kind, names in re.findall(r"(int32_t|float) ([\w, ]+)", model) for name in names.split(", ")
    ]
    of_c = {"int32_t": c_model.ctypes.c_int32, "float": c_model.ctypes.c_float}
    assert [(name.strip(), of_c[kind]) for name, kind in declared] == list(c_model.MODEL_FIELDS)


def test_a_model_fills_no_slot_that_the_engines_lack_unless_they_refuse_it() -> None:
    config = ModelConfig(bias=True, position="learned", norm="layernorm")
    assert block_parameters(config, 0).keys() <= set(BLOCK_SLOTS)
    assert network_parameters(config, 11).keys() <= set(NETWORK_SLOTS)
    assert network_parameters(config.model_copy(update={"embedding_norm": True}), 11).keys() - set(NETWORK_SLOTS)
