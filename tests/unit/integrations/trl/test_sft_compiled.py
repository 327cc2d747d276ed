"""A compiled model hands out the same as one that is not."""

import pytest
import torch

COMPILED = dict(torch_compile=True, torch_compile_backend="aot_eager", learning_rate=0.0)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("packing", [False, True])
def test_documents_of_a_compiled_model_cost_what_they_cost(sft, packing):
    trained = sft.train(dict(args=dict(COMPILED, packing=packing)), keep=True, attach={})
    found, expected = trained.recorded_costs(), trained.true_costs()
    assert found.keys() == expected.keys()
    for step, documents in expected.items():
        for document, (loss_sum, num_tokens) in documents.items():
            assert found[step][document] == (pytest.approx(loss_sum, rel=1e-5), num_tokens)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_unchanged(sft):
    setting = dict(args=dict(COMPILED, learning_rate=1e-2, packing=True))
    plain = sft.train(setting)
    trained = sft.train(setting, keep=True, attach={})
    for name, value in plain.weights.items():
        assert torch.equal(trained.weights[name], value)
