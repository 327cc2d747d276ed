"""A stage's file is read strictly: what it cannot mean is an error that names the file, the key and the remedy."""

import pytest

from recipes.sft.config import StageConfig, read_stage, stages
from recipes.strict_yaml import ConfigError, read_named

GOOD = """\
stage: mine
num_steps: 3
accumulation: 2
data:
  supervise: answer
  batch_size: 4
model:
  dim: 8
  num_layers: 1
  num_heads: 2
  max_tokens: 16
optim:
  lr: 1.0e-3
  loss_spike_skip_multiplier: 2
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return read_named(StageConfig, tmp_path, path.stem, named_in="stage")

    return read_text


def test_a_file_is_read_into_its_settings(read):
    config = read(GOOD)
    assert config.optim.lr == 1e-3
    assert config.optim.loss_spike_skip_multiplier == 2.0
    assert config.optim.loss_spike_skip_window_size is None
    assert config.data.package is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lr: 1.0e-3", "lr: 1.0e-3\n  loss_spike_skip_multiplyer: 2", "optim.loss_spike_skip_multiplyer: no such key"),
        ("lr: 1.0e-3", "lr: 1e-3", "optim.lr: found '1e-3', expected a finite number. YAML takes an exponent"),
        ("lr: 1.0e-3", "lr: .nan", "optim.lr: found nan, expected a finite number"),
        ("lr: 1.0e-3", "lr: -0.1", "optim.lr: found -0.1, expected 0 or more"),
        ("lr: 1.0e-3", "weight_decay: 0.1", "optim.lr: is missing"),
        ("num_steps: 3", "num_steps: 3.0", "num_steps: found 3.0, expected a whole number"),
        ("num_steps: 3", "num_steps: yes", "num_steps: found True, expected a whole number"),
        ("num_steps: 3", "num_steps:", "num_steps: found nothing, expected a whole number"),
        ("num_steps: 3", "num_steps: 3\nnum_steps: 4", "num_steps: given twice"),
        ("num_heads: 2", "num_heads: 3", "model.dim: 8 cannot be shared among 3 heads"),
        ("supervise: answer", "supervise: question", "data.supervise: found 'question', expected 'answer' or 'all'"),
        ("supervise: answer", "supervise: [answer]", "data.supervise: found ['answer'], expected 'answer' or 'all'"),
        ("stage: mine", "stage: yours", "stage: found 'yours', expected the file's own name, 'mine'"),
        ("stage: mine", "stage: [", "cannot be read as YAML"),
        ("optim:", "optim: 3\nother:", "other: no such key"),
        (GOOD, "3", "the file: found 3, expected keys and values"),
        (GOOD, "!!python/object/apply:os.getcwd []", "cannot be read as YAML"),
    ],
)
def test_what_a_file_cannot_mean_is_said(read, old, new, said):
    with pytest.raises(ConfigError) as error:
        read(GOOD.replace(old, new))
    assert said in str(error.value)
    assert "mine.yaml: " in str(error.value)


def test_a_stage_that_there_is_no_file_for_is_refused():
    with pytest.raises(ConfigError, match=r"no stage 'dpo' in .*: use one of anneal, pretrain, sft"):
        read_stage("dpo")


@pytest.mark.parametrize("stage", ["anneal", "pretrain", "sft"])
def test_every_stage_of_the_recipe_is_read(stage):
    assert read_stage(stage).stage == stage
    assert stage in stages()


def test_all_stages_train_the_same_model():
    assert len({read_stage(stage).model for stage in stages()}) == 1
