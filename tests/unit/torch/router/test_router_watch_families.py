"""The routers of Hugging Face models are found by themselves, and every figure of a report is the definition's: tiny
random models of each family against plain Python, with padding, in float32 and bfloat16.
"""

import math
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    DbrxConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    Llama4TextConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from trimtab.errors import UsageError
from trimtab.moe import RouterWatch, find_routers
from trimtab.watched import LayerFigures

VOCABULARY = 48
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
LATENT: dict[str, Any] = {
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
DBRX: dict[str, Any] = {
    "d_model": 32,
    "n_heads": 2,
    "n_layers": 2,
    "max_seq_len": 64,
    "vocab_size": VOCABULARY,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
    "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 6, "moe_top_k": 2},
}

FAMILIES: dict[str, tuple[Any, list[str], int]] = {
    "mixtral": (
        MixtralConfig(**SIZES, num_local_experts=6, num_experts_per_tok=2),
        ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
        2,
    ),
    "qwen2_moe": (
        Qwen2MoeConfig(
            **SIZES,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            decoder_sparse_step=2,
        ),
        ["model.layers.1.mlp.gate"],
        3,
    ),
    "qwen3_moe": (
        Qwen3MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=16),
        ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
        2,
    ),
    "olmoe": (
        OlmoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2),
        ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
        2,
    ),
    "deepseek_v2": (
        DeepseekV2Config(
            **SIZES,
            **LATENT,
            n_routed_experts=6,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            topk_method="greedy",
            q_lora_rank=None,
        ),
        ["model.layers.1.mlp.gate"],
        2,
    ),
    "deepseek_v3": (
        DeepseekV3Config(
            **SIZES,
            **LATENT,
            n_routed_experts=6,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            n_group=2,
            topk_group=1,
            q_lora_rank=8,
        ),
        ["model.layers.1.mlp.gate"],
        2,
    ),
    "gpt_oss": (
        GptOssConfig(**SIZES, num_local_experts=6, num_experts_per_tok=2, head_dim=16),
        ["model.layers.0.mlp.router", "model.layers.1.mlp.router"],
        2,
    ),
    "glm4_moe": (
        Glm4MoeConfig(
            **SIZES,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
            head_dim=16,
        ),
        ["model.layers.1.mlp.gate"],
        2,
    ),
    "llama4": (
        Llama4TextConfig(
            **SIZES,
            num_local_experts=6,
            num_experts_per_tok=1,
            intermediate_size_mlp=16,
            head_dim=16,
            interleave_moe_layer_step=1,
        ),
        ["model.layers.0.feed_forward.router", "model.layers.1.feed_forward.router"],
        1,
    ),
    "dbrx": (DbrxConfig(**DBRX), ["transformer.blocks.0.ffn.router", "transformer.blocks.1.ffn.router"], 2),
}


@pytest.fixture(autouse=True)
def _a_quiet_library():
    told = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(told)


def built(family: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family][0], dtype=dtype)
    with torch.no_grad():  # routers that choose, and not ones that are near uniform
        for name in FAMILIES[family][1]:
            for parameter in model.get_submodule(name).parameters():
                parameter.normal_(0.0, 0.7)
    return model.train()


def padded_batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    mask[2, :2] = 0
    return ids, mask


def rows_of(output: Any, *, top_k: int) -> tuple[list[list[float]], list[list[int]]]:
    """Logits and chosen experts of each token: what the class says of its own output."""
    if isinstance(output, torch.Tensor):
        logits, indices = output, None
    elif len(output) == 2:
        logits, indices = output[1], None
    else:
        logits, _, indices = output
    rows = logits.detach().float().tolist()
    if indices is not None:
        return rows, indices.tolist()
    return rows, [sorted(range(len(row)), key=lambda expert: -row[expert])[:top_k] for row in rows]


def by_hand(rows: list[list[float]], chosen: list[list[int]], real: list[bool], *, top_k: int) -> dict[str, Any]:
    kept = [(row, own) for row, own, is_real in zip(rows, chosen, real, strict=True) if is_real]
    num_experts = len(rows[0])
    lses, entropies, counts, mean_p = [], [], [0] * num_experts, [0.0] * num_experts
    for row, own in kept:
        lse = math.log(math.fsum(math.exp(x) for x in row))
        p = [math.exp(x - lse) for x in row]
        lses.append(lse)
        entropies.append(-math.fsum(q * math.log(q) for q in p))
        for expert in own:
            counts[expert] += 1
        mean_p = [total + q / len(kept) for total, q in zip(mean_p, p, strict=True)]
    return {
        "num_experts": num_experts,
        "top_k": top_k,
        "num_tokens": len(kept),
        "z": math.fsum(lse**2 for lse in lses) / len(kept),
        "lse": math.fsum(lses) / len(kept),
        "load_balance": num_experts
        * math.fsum(count / len(kept) * p for count, p in zip(counts, mean_p, strict=True))
        / top_k,
        "counts": tuple(counts),
        "token_entropy": math.fsum(entropies) / len(kept),
        "spread": math.fsum(max(row) - min(row) for row, _ in kept) / len(kept),
    }


def assert_figures(layer: LayerFigures, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        found = getattr(layer, name)
        assert found == (pytest.approx(value, rel=2e-5) if isinstance(value, float) else value), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_figures_of_a_family_are_those_of_plain_python(family: str, dtype: torch.dtype):
    _, names, top_k = FAMILIES[family]
    model = built(family, dtype)
    ids, mask = padded_batch()
    outputs: dict[str, Any] = {}
    for name in names:
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: outputs.__setitem__(name, output)
        )
    watch = RouterWatch(model)

    model(input_ids=ids, attention_mask=mask)
    report = watch.report(7)

    assert [layer.name for layer in report.layers] == names
    assert report.expected_tokens == int(mask.sum()) == 16
    assert report.notes == ()
    for layer in report.layers:
        rows, chosen = rows_of(outputs[layer.name], top_k=top_k)
        assert_figures(layer, by_hand(rows, chosen, mask.flatten().bool().tolist(), top_k=top_k))
        assert sum(layer.counts or ()) == 16 * top_k


def test_experts_that_a_bias_chooses_are_counted_and_not_the_largest_logits():
    model = built("deepseek_v3", torch.float32)
    gate = model.get_submodule("model.layers.1.mlp.gate")
    gate.e_score_correction_bias += torch.tensor([0.0, 0.0, 0.0, 0.0, 9.0, 9.0])
    watch = RouterWatch(model)

    model(input_ids=padded_batch()[0])

    [layer] = watch.report(1).layers
    assert layer.counts == (0, 0, 0, 0, 21, 21)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_what_gradient_checkpointing_computes_again_is_counted_once(use_reentrant: bool):
    ids, mask = padded_batch()
    reports = []
    for checkpoints in (False, True):
        model = built("mixtral", torch.float32)
        if checkpoints:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
        calls = []
        model.model.layers[0].mlp.gate.register_forward_hook(lambda *given, calls=calls: calls.append(1))
        watch = RouterWatch(model)
        for _ in range(2):
            model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        reports.append(watch.report(2))
        assert len(calls) == (4 if checkpoints else 2)

    assert reports[0] == reports[1]
    assert reports[1].layers[0].num_tokens == reports[1].expected_tokens == 32


def test_generation_and_evaluation_are_not_counted():
    model = built("mixtral", torch.float32)
    watch = RouterWatch(model)
    ids, _ = padded_batch()

    model.generate(ids[:1], attention_mask=torch.ones_like(ids[:1]), max_new_tokens=2, do_sample=False, pad_token_id=0)
    model.eval()
    model(input_ids=ids)
    model.train()
    with torch.no_grad():
        model(input_ids=ids)
    report = watch.report(1)

    assert report.layers == ()
    assert report.expected_tokens == 0


def test_the_cosine_of_populations_is_that_of_the_experts_flattened():
    model = built("mixtral", torch.float32)
    watch = RouterWatch(model, num_populations=2)

    model(input_ids=padded_batch()[0])
    report = watch.report(1)

    assert report.num_populations == 2
    for layer, block in zip(report.layers, model.model.layers, strict=True):
        experts = block.mlp.experts
        halves = [
            [x for part in (experts.gate_up_proj, experts.down_proj) for x in part[half].flatten().tolist()]
            for half in (slice(0, 3), slice(3, 6))
        ]
        dot = math.fsum(a * b for a, b in zip(*halves, strict=True))
        norms = [math.sqrt(math.fsum(a * a for a in half)) for half in halves]
        assert layer.population_cosine == pytest.approx(dot / norms[0] / norms[1], abs=1e-6)


def test_a_router_of_another_shape_of_output_is_refused_and_named():
    config = transformers.SwitchTransformersConfig(
        vocab_size=48,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=2,
        num_sparse_encoder_layers=1,
        num_decoder_layers=2,
        num_sparse_decoder_layers=1,
        num_heads=2,
        num_experts=2,
    )
    model = transformers.SwitchTransformersForConditionalGeneration(config)

    assert find_routers(model) == ()
    with pytest.raises(UsageError, match=r"SwitchTransformersTop1Router.*beyond a capacity.*Pass routers="):
        RouterWatch(model)


class OldSparseMoeBlock(nn.Module):
    """As Mixtral's in transformers 4: the gate is a Linear, and the block says the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = 4, 2
        self.gate = nn.Linear(8, 4, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.gate(hidden.flatten(0, 1)).softmax(-1).topk(self.top_k).values.sum()


class GptOssTopKRouter(nn.Module):
    """As in transformers 4: scores and indices, no logits."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = 4, 2
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top = (hidden.flatten(0, 1) @ self.weight.T).topk(2)
        return top.values.softmax(-1), top.indices


def test_the_linear_gate_of_an_older_mixtral_is_found():
    model = nn.Sequential(OldSparseMoeBlock(), OldSparseMoeBlock())
    watch = RouterWatch(model)

    model(torch.randn(2, 5, 8))

    report = watch.report(1)
    assert [(layer.name, layer.num_tokens, layer.top_k) for layer in report.layers] == [
        ("0.gate", 10, 2),
        ("1.gate", 10, 2),
    ]
    assert report.expected_tokens == 10


def test_scores_of_an_older_router_are_not_taken_for_logits():
    model = nn.Sequential(GptOssTopKRouter())
    watch = RouterWatch(model)

    model(torch.randn(2, 5, 8))
    report = watch.report(1)

    assert report.layers == ()
    assert report.notes == ("0: not read, for it gave 2 values, expected 3 or more, logits among them",)
