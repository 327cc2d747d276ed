"""A preset's file is read strictly: what it cannot mean is an error that names the file, the key and the remedy."""

import pytest

from recipes.strict_yaml import ConfigError, read_named
from recipes.twin_moe.config import TwinConfig, presets, read_preset

GOOD = """\
preset: mine
num_steps: 30
accumulation: 2
eval_every: 5
save_every: 10
keep: 2
report_every: 5
log_every: 1
precision: float32
data:
  batch_size: 4
  num_tokens: 16
  num_eval_batches: 1
model:
  dim: 8
  num_layers: 1
  num_heads: 2
  num_experts: 4
  top_k: 2
  num_populations: 2
  expert_dim: 8
optim:
  lr: 1.0e-3
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return read_named(TwinConfig, tmp_path, path.stem, named_in="preset")

    return read_text


def test_a_file_is_read_into_its_settings_and_the_terms_weights_have_defaults(read):
    config = read(GOOD)
    assert config.optim.lr == 1e-3
    assert (config.optim.lbl_weight, config.optim.z_weight, config.optim.xpop_weight) == (0.01, 1e-4, 0.01)
    assert config.seed == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lr: 1.0e-3", "lr: 1.0e-3\n  z_wight: 1.0e-4", "optim.z_wight: no such key"),
        ("lr: 1.0e-3", "lr: 1.0e-3\n  z_weight: 1e-4", "optim.z_weight: found '1e-4', expected a finite number. YAML"),
        ("lr: 1.0e-3", "lr: 1.0e-3\n  z_weight: -1.0e-4", "optim.z_weight: found -0.0001, expected 0 or more"),
        ("lr: 1.0e-3", "lr: 1.0e-3\n  min_lr: 1.0e-2", "optim.min_lr: found 0.01, expected at most lr, 0.001"),
        ("lr: 1.0e-3", "lr: yes", "optim.lr: found True, expected a finite number"),
        ("lr: 1.0e-3", "lr: 0", "optim.lr: found 0.0, expected a number above 0"),
        ("lr: 1.0e-3", "lr: 1.0e-3\n  max_grad_norm: 0", "optim.max_grad_norm: found 0.0, expected a number above 0"),
        ("lr: 1.0e-3", "lr: 1.0e-3\n  warmup_steps: 30", "optim.warmup_steps: found 30, expected less than num_steps"),
        ("num_steps: 30", "num_steps: 30\nnum_steps: 40", "num_steps: given twice"),
        ("save_every: 10", "save_every: 0", "save_every: found 0, expected 1 or more"),
        ("precision: float32", "precision: float16", "precision: found 'float16', expected 'float32' or 'bfloat16'"),
        ("num_heads: 2", "num_heads: 3", "model.dim: 8 cannot be shared among 3 heads"),
        ("num_experts: 4", "num_experts: 5", "model.num_experts: 5 cannot be split into 2 populations"),
        ("top_k: 2", "top_k: 5", "model.top_k: found 5, expected at most the 4 experts"),
        ("num_populations: 2", "num_populations: 1", "model.num_populations: found 1, expected 2 or more"),
        ("num_tokens: 16", "num_tokens: 1", "data.num_tokens: found 1, expected 2 or more"),
        ("preset: mine", "preset: yours", "preset: found 'yours', expected the file's own name, 'mine'"),
        ("preset: mine\n", "", "preset: is missing"),
    ],
    ids=lambda value: value.split("\n")[-1][:40] if isinstance(value, str) else None,
)
def test_what_a_file_cannot_mean_is_said(read, old, new, said):
    with pytest.raises(ConfigError) as error:
        read(GOOD.replace(old, new))
    assert said in str(error.value)
    assert "mine.yaml: " in str(error.value)


def test_a_preset_that_there_is_no_file_for_is_refused():
    with pytest.raises(ConfigError, match=r"no preset 'huge' in .*: use one of .*\btiny\b"):
        read_preset("huge")


def test_every_preset_is_read():
    assert {"local140a50", "tiny"} <= set(presets())
    assert [read_preset(name).preset for name in presets()] == presets()
