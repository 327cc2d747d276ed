"""The audit of Hugging Face's own loss: what its models add by their coefficient, and what windows make of it."""

import pytest
import torch

from trimtab import moe

transformers = pytest.importorskip("transformers")

COEFFICIENT = 0.02
TINY = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": COEFFICIENT,
    "output_router_logits": True,
}
MODELS = {
    "Mixtral": ("Mixtral", {"num_local_experts": 4}),
    "Qwen3-MoE": ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8}),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request):
    name, own = request.param
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TINY, **own)
    return getattr(transformers, f"{name}ForCausalLM")(config).train()


def batches():
    """Two micro-batches, half of whose tokens are padding."""
    dice = torch.Generator().manual_seed(0)
    mask = torch.ones(4, 24, dtype=torch.long)
    mask[:, 16:] = 0
    mask[0, 6:] = 0
    found = []
    for _ in range(2):
        tokens = torch.randint(64, (4, 24), generator=dice)
        found.append({"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)})
    return found


def audit(model, losses, *, stated=COEFFICIENT, **settings):
    return moe.audit_aux_weights(
        model,
        losses=losses,
        micro_batches=batches(),
        weights={"load_balance": stated},
        convention="hf",
        mask=lambda batch: batch["attention_mask"],
        **settings,
    )


def own_loss(model):
    def losses(batch, accumulation):
        output = model(**batch)
        ce = model(**batch, output_router_logits=False).loss
        return {"total": output.loss / accumulation, "ce": ce, "load_balance": output.aux_loss}

    return losses


def test_a_models_own_loss_has_the_coefficient_of_its_config(model):
    result = audit(model, own_loss(model))

    assert result.findings == ()
    assert result.is_sound
    [weight] = result.weights
    assert weight.found == pytest.approx(COEFFICIENT, rel=1e-4)
    assert weight.value == pytest.approx(2.0, rel=0.1)  # balance, times k


@pytest.mark.parametrize("added", [0.0, COEFFICIENT], ids=["as it is", "once more"])
def test_a_ce_that_is_the_models_own_loss_holds_its_aux(model, added):
    def losses(batch, accumulation):
        output = model(**batch)
        return {"total": (output.loss + added * output.aux_loss) / accumulation, "ce": output.loss}

    result = audit(model, losses)

    assert result.weights[0].found == pytest.approx(COEFFICIENT + added, rel=1e-3)
    assert result.is_sound == (added == 0.0)
    assert [finding.kind for finding in result.findings] == ([] if added == 0.0 else ["weight_applied_twice"])
    assert "ce holds load_balance with 0.02" in result.notes[0]
    assert "output_router_logits=False" in result.notes[0]


def test_a_stated_weight_may_be_what_is_wrong_and_is_said_to_be(model):
    [finding] = audit(model, own_loss(model), stated=COEFFICIENT / 2).findings

    assert "load_balance weighs 0.02 in the gradient, stated 0.01, 2 times as much" in finding.text
    assert "or correct the stated weight" in finding.text


def test_a_coefficient_that_is_meant_for_the_divided_loss_is_another_form(model):
    result = audit(model, own_loss(model), stated=COEFFICIENT, over_layers="mean", top_k=2)
    assert result.is_sound

    switch = moe.audit_aux_weights(
        model,
        losses=own_loss(model),
        micro_batches=batches(),
        weights={"load_balance": COEFFICIENT},
        mask=lambda batch: batch["attention_mask"],
    )
    [finding] = switch.findings
    assert finding.kind == "weight_differs"
    assert 'pooled over layers (convention="hf")' in finding.text


def test_a_loss_by_the_tokens_of_a_window_leaves_the_models_aux_undivided(model):
    # given: a trainer that hands num_items_in_batch to the model, which then adds its aux loss as it is
    def losses(batch, accumulation):
        num_tokens = (batch["labels"] != -100).sum()
        ce = model(**batch, output_router_logits=False).loss
        return {"total": model(**batch, num_items_in_batch=num_tokens * accumulation).loss, "ce": ce}

    # when
    [finding] = audit(model, losses).findings

    # then
    assert finding.kind == "accumulation_dependent"
    assert "load_balance weighs 0.08 in a window of 4 micro-batches and 0.02 in one of 1" in finding.text


def test_router_logits_that_nobody_asked_for_add_nothing(model):
    def losses(batch, accumulation):
        ce = model(**batch, output_router_logits=False).loss
        return {"total": ce / accumulation, "ce": ce}

    [finding] = audit(model, losses).findings

    assert finding.kind == "weight_not_applied"
    assert "the loss is ce alone" in finding.text


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")  # its new name is not in 5.0
def test_a_models_own_checkpointing_works_where_it_is_not_reentrant(model):
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    assert audit(model, own_loss(model)).is_sound
