"""Where the guard stands in the recipe, read from its files. That it works is for the proof to show."""

import ast
from pathlib import Path

import pytest
import yaml

RECIPE = Path(__file__).parents[1]
SOURCES = sorted(RECIPE.glob("*.py"))


def method(name):
    (engine,) = (
        node for node in ast.walk(ast.parse((RECIPE / "engine.py").read_text())) if isinstance(node, ast.ClassDef)
    )
    (found,) = (node for node in engine.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return found


def calls(tree):
    """Dotted names of what is called, in the order of the text."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.unparse(node.func) for node in sorted(found, key=lambda node: (node.lineno, node.col_offset))]


def test_the_guards_keys_are_set_in_the_one_stage_where_skipping_is_meant():
    setting = [path.stem for path in sorted(RECIPE.glob("configs/*.yaml")) if "loss_spike_skip" in path.read_text()]
    assert setting == ["sft"]
    assert yaml.safe_load((RECIPE / "configs" / "sft.yaml").read_text())["optim"]["loss_spike_skip_multiplier"] == 2.0


def test_the_kit_stands_between_forward_and_backward():
    assert [name for name in calls(method("backward_step")) if not name.startswith("self._sync")] == [
        "self._kit.guard_loss",
        "self._kit.accumulate_microbatch",
        "loss.backward",
    ]
    assert not [name for name in calls(method("forward_step")) if "_kit" in name]


def test_the_window_is_finished_before_clipping_and_nothing_else_has_moved():
    order = [name for name in calls(method("optimizer_step")) if name not in ("RuntimeError", "list")]
    assert order == [
        "self._module.parameters",
        "self._kit.finish_window",
        "torch.nn.utils.clip_grad_norm_",
        "self.optimizer.step",
        "self.scheduler.step",
        "self.optimizer.zero_grad",
    ]


def test_backward_runs_whatever_the_verdict():
    ways_around = (ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Try, ast.For, ast.While, ast.Raise)
    step = method("backward_step")
    assert not [node for node in ast.walk(step) if isinstance(node, ways_around)]
    assert [node for node in ast.walk(step) if isinstance(node, ast.Return)] == [step.body[-1]]


@pytest.mark.parametrize(
    "name", ["build_loss_guard", "guard_loss", "accumulate_microbatch", "backward", "finish_window", "clip_grad_norm_"]
)
def test_each_part_of_the_guard_is_called_in_one_place(name):
    places = [
        path.name for path in SOURCES for call in calls(ast.parse(path.read_text())) if call.rpartition(".")[2] == name
    ]
    assert places == ["engine.py"]


def test_no_other_place_touches_the_loss():
    # given: every arithmetic on a loss, and every reduction, in the recipe's files
    losses = {"loss", "loss_sum", "num_tokens"}
    touched = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp | ast.AugAssign | ast.UnaryOp):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                touched += [f"{path.name}:{node.lineno}"] if names & losses else []
            elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                "all_reduce",
                "nan_to_num",
                "where",
                "item",
                "detach",
            ):
                touched.append(f"{path.name}:{node.lineno}")
    # then
    assert touched == []
