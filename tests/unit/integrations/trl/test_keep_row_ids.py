"""`keep_row_ids`: numbers of rows go through all that an SFTTrainer's constructor does, and nobody else notices."""

import functools
import sys
import threading

import datasets
import pytest
import torch
import trl.trainer.sft_trainer as sft_module
from trl import SFTTrainer

import trimtab
from trimtab import MissingExtraError
from trimtab.dataset import describe
from trimtab.integrations.trl_keeping import COLUMN

DROPPING = dict(kind="prompt-completion", args=dict(max_length=6))  # a longer prompt leaves nothing to learn
DROPPED = {2, 7}
PACKED = dict(args=dict(packing=True))


def stand_ins():
    return [
        SFTTrainer.__dict__["_prepare_dataset"],
        sft_module.pack_dataset,
        datasets.Dataset.__dict__["select_columns"],
        datasets.IterableDataset.__dict__["select_columns"],
    ]


def rows_of(trained):
    return {row for rows in trained.recorded_costs().values() for row in rows}


def assert_costs_are_right(trained, *, row_of=lambda document: document):
    expected, found = trained.true_costs(), trained.recorded_costs()
    assert {step: {row_of(d): n for d, (_, n) in documents.items()} for step, documents in expected.items()} == {
        step: {row: n for row, (_, n) in rows.items()} for step, rows in found.items()
    }
    for step, documents in expected.items():
        for document, (loss_sum, _) in documents.items():
            assert found[step][row_of(document)][0] == pytest.approx(loss_sum, rel=1e-5)


def still(setting, **args):
    return dict(setting, args=dict(setting.get("args", {}), learning_rate=0.0, **args))


# ------------------------------------------------------------------------------------------------------ what is kept


@pytest.mark.parametrize("stream", [False, True])
def test_dropped_rows_do_not_shift_the_numbers_of_those_that_stay(sft, stream):
    setting = dict(DROPPING, stream=stream, args=dict(DROPPING["args"], learning_rate=0.0, max_steps=6))
    trained = sft.train(setting, keep=True, attach={})
    assert rows_of(trained) == set(range(13)) - DROPPED
    assert_costs_are_right(trained)


@pytest.mark.parametrize("setting", [dict(), PACKED, DROPPING], ids=["text", "bfd", "dropping"])
def test_a_row_of_a_selection_is_its_place_there_and_its_row_of_the_table_is_told(sft, setting):
    # given every third document, in another order
    chosen = [12, 0, 9, 3, 6]
    whole = sft.make_dataset(setting.get("kind", "text"))
    # when
    trained = sft.train(still(setting), keep=True, attach={}, dataset=whole.select(chosen))
    # then
    assert_costs_are_right(trained, row_of=chosen.index)
    assert trained.log.header.num_rows == len(chosen)
    ids = trained.log.id_columns()
    told = dict(zip(ids.row.tolist(), ids.table_row.tolist(), strict=True))
    assert told == dict(enumerate(chosen))


def test_the_log_describes_the_dataset_that_the_constructor_was_given(sft):
    dataset = sft.make_dataset()
    trained = sft.train(PACKED, keep=True, attach={}, dataset=dataset)
    header = trained.log.header
    assert header.num_rows == 13
    assert header.dataset_fingerprint == describe(dataset).fingerprint
    assert header.row_index == "index into the dataset handed to the trainer"
    assert header.backend == "trl"


def test_ids_of_the_users_own_are_told_beside_the_numbers(sft):
    names = [f"doc-{document}" for document in range(13)]
    dataset = sft.make_dataset().add_column("row_id", names)
    trained = sft.train(still(PACKED), keep=True, attach={}, dataset=dataset)
    ids = trained.log.id_columns()
    assert dict(zip(ids.row.tolist(), ids.name, strict=True)) == dict(enumerate(names))


@pytest.mark.parametrize("setting", [dict(), PACKED], ids=["text", "bfd"])
def test_a_dataset_with_a_format_of_its_own_is_trained_on_as_without_it(sft, setting):
    # given texts beside messages that would be trained on in their place, were they not hidden
    messages = sft.make_dataset("messages")["messages"]
    dataset = sft.make_dataset().add_column("messages", list(messages)).with_format("python", columns=["text"])
    plain = sft.train(setting, dataset=dataset)
    # when
    trained = sft.train(setting, keep=True, attach={}, dataset=dataset)
    # then
    for name, value in plain.weights.items():
        assert torch.equal(trained.weights[name], value)
    assert rows_of(trained) == set(range(13))


def test_a_column_by_the_same_name_gives_no_numbers(sft):
    dataset = sft.make_dataset().add_column(COLUMN, [7] * 13)
    trained = sft.train(still(PACKED), keep=True, attach={}, dataset=dataset)
    assert_costs_are_right(trained)


# ------------------------------------------------------------------------------------------------------------ streams


@pytest.mark.parametrize("packing", [False, True])
def test_a_streams_own_numbers_hold_whatever_its_order_and_workers(sft, packing):
    # given a stream in two parts, shuffled, that two workers read
    dataset = sft.make_dataset().add_column("number", list(range(100, 113)))
    stream = dataset.to_iterable_dataset(num_shards=2).shuffle(seed=5, buffer_size=4)
    args = dict(max_steps=4, dataloader_num_workers=2, packing=packing, learning_rate=0.0)
    # when
    with trimtab.keep_row_ids(row_id="number"):
        trained = sft.train(dict(args=args), dataset=stream, attach={})
    # then
    assert_costs_are_right(trained, row_of=lambda document: 100 + document)


def test_without_numbers_a_row_is_the_worker_and_the_position_in_its_part(sft):
    # given a stream of two parts that two workers read
    stream = sft.make_dataset().to_iterable_dataset(num_shards=2)
    args = dict(max_steps=7, dataloader_num_workers=2, learning_rate=0.0)
    # when
    trained = sft.train(dict(args=args), dataset=stream, keep=True, attach={})
    # then the second part begins at document 7
    assert_costs_are_right(trained, row_of=lambda document: document if document < 7 else 1 << 40 | document - 7)
    assert "worker << 40 | position" in trained.log.header.row_index


def test_a_loader_that_the_user_asks_for_does_not_show_the_numbers(sft):
    trainer = sft.trainer(dict(stream=True, args=dict(max_steps=1, remove_unused_columns=False)), keep=True)
    trimtab.attach(trainer, record=False)
    assert COLUMN not in next(iter(trainer.train_dataset))
    assert COLUMN not in next(iter(trainer.get_train_dataloader()))


# ----------------------------------------------------------------------------------------------- nobody else notices


@pytest.mark.parametrize("setting", [dict(), PACKED, DROPPING], ids=["text", "bfd", "dropping"])
def test_the_dataset_that_comes_out_is_the_one_without_the_context(sft, setting):
    plain, kept = sft.trainer(setting), sft.trainer(setting, keep=True)
    assert kept.train_dataset.column_names == plain.train_dataset.column_names
    assert kept.train_dataset.to_list() == plain.train_dataset.to_list()


def test_it_may_be_used_without_attach(sft):
    plain, kept = sft.train(PACKED), sft.train(PACKED, keep=True)
    for name, value in plain.weights.items():
        assert torch.equal(kept.weights[name], value)


def test_evaluation_data_is_left_alone(sft):
    # given
    evaluated = dict(args=dict(packing=True, eval_strategy="steps", eval_steps=2))
    plain = sft.train(evaluated, eval_dataset=sft.make_dataset("text", num_documents=4))
    # when
    trained = sft.train(evaluated, keep=True, attach={}, eval_dataset=sft.make_dataset("text", num_documents=4))
    # then
    assert trained.trainer.eval_dataset.to_list() == plain.trainer.eval_dataset.to_list()
    assert trained.logged == plain.logged
    losses = [event.facts["loss"] for event in trained.log.event_list() if event.kind == "evaluation"]
    assert losses == [entry["eval_loss"] for entry in plain.logged if "eval_loss" in entry]


def test_an_evaluation_set_that_is_called_train_is_left_alone(sft):
    trainer = sft.trainer(PACKED, keep=True, eval_dataset={"train": sft.make_dataset(num_documents=4)})
    assert COLUMN not in trainer.eval_dataset["train"].column_names
    trained = sft.train(PACKED, keep=True, attach={}, eval_dataset={"train": sft.make_dataset()})
    assert rows_of(trained) == set(range(13))


@pytest.mark.parametrize("setting", [dict(), PACKED, DROPPING], ids=["text", "bfd", "dropping"])
def test_the_cache_of_a_dataset_on_disk_serves_later_trainers_without_it(sft, tmp_path, setting):
    # given the same data twice on disk, where `datasets` caches what is made of it
    for name in ("fresh", "used"):
        sft.make_dataset(setting.get("kind", "text")).save_to_disk(tmp_path / name)
    fresh = sft.trainer(setting, dataset=datasets.load_from_disk(tmp_path / "fresh"))
    # when one of them is used inside the context first
    sft.trainer(setting, keep=True, dataset=datasets.load_from_disk(tmp_path / "used"))
    later = sft.trainer(setting, dataset=datasets.load_from_disk(tmp_path / "used"))
    again = sft.trainer(setting, keep=True, dataset=datasets.load_from_disk(tmp_path / "used"))
    # then
    for trainer in (later, again):
        assert trainer.train_dataset.column_names == fresh.train_dataset.column_names
        assert trainer.train_dataset.to_list() == fresh.train_dataset.to_list()


# -------------------------------------------------------------------------------------------------------- the context


def test_everything_is_put_back_on_exit_also_on_an_exception():
    before = stand_ins()
    with trimtab.keep_row_ids():
        assert all(now is not then for now, then in zip(stand_ins(), before, strict=True))
    assert stand_ins() == before
    with pytest.raises(ZeroDivisionError), trimtab.keep_row_ids():
        raise ZeroDivisionError
    assert stand_ins() == before


def test_contexts_may_be_nested(sft):
    before = stand_ins()
    with trimtab.keep_row_ids():
        with trimtab.keep_row_ids():
            pass
        trained = sft.train(still(PACKED), attach={})
    assert_costs_are_right(trained)
    assert stand_ins() == before


def test_contexts_of_two_threads_may_end_in_any_order():
    # given a context that another thread opens first and closes first
    before = stand_ins()
    opened, may_close = threading.Event(), threading.Event()

    def other():
        with trimtab.keep_row_ids():
            opened.set()
            may_close.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    opened.wait(30)
    # when
    with trimtab.keep_row_ids():
        may_close.set()
        thread.join(30)
        # then this one still works
        assert all(now is not then for now, then in zip(stand_ins(), before, strict=True))
    assert stand_ins() == before


def test_only_trainers_built_inside_in_this_thread_are_concerned(sft, said):
    # given one built in another thread while the context is open, and one after it
    built = []
    with trimtab.keep_row_ids():
        thread = threading.Thread(target=lambda: built.append(sft.trainer(PACKED)))
        thread.start()
        thread.join()
    built.append(sft.trainer(PACKED))
    # when
    for trainer in built:
        trimtab.attach(trainer, record=True)
    # then
    assert len([line for line in said() if "not its rows" in line]) == 2


def test_what_somebody_else_puts_on_top_meanwhile_stays(sft, monkeypatch):
    # given somebody who patches the same method inside the context
    monkeypatch.setattr(SFTTrainer, "_prepare_dataset", SFTTrainer._prepare_dataset)  # undone to this
    with trimtab.keep_row_ids():
        ours = SFTTrainer._prepare_dataset
        monkeypatch.setattr(SFTTrainer, "_prepare_dataset", lambda *args, **kwargs: ours(*args, **kwargs))
        theirs = SFTTrainer._prepare_dataset
        trained = sft.train(still(PACKED), attach={})
    # then it works inside, is left in place, and is harmless
    assert_costs_are_right(trained)
    assert SFTTrainer._prepare_dataset is theirs
    assert sft.trainer(PACKED).train_dataset.to_list() == trained.trainer.train_dataset.to_list()
    # also when they put back what they found, and a new context is opened over it
    monkeypatch.setattr(SFTTrainer, "_prepare_dataset", ours)
    stream = dict(stream=True, args=dict(max_steps=7, learning_rate=0.0))
    assert_costs_are_right(sft.train(stream, keep=True, attach={}))


def test_switched_off_it_does_nothing(monkeypatch):
    monkeypatch.setenv("TRIMTAB", "off")
    before = stand_ins()
    with trimtab.keep_row_ids():
        assert stand_ins() == before


def test_without_trl_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl.trainer.sft_trainer", None)
    with pytest.raises(MissingExtraError, match="pip install 'trl"), trimtab.keep_row_ids():
        pass
    # and has left nothing open
    monkeypatch.undo()
    before = stand_ins()
    with trimtab.keep_row_ids():
        assert stand_ins() != before
    assert stand_ins() == before


def test_with_another_trl_it_says_so_and_the_trainer_is_built_without(sft, said, monkeypatch):
    # given a TRL that names its arguments otherwise
    prepare = SFTTrainer._prepare_dataset

    def renamed(self, data, processing_class, args, packing, formatting_func, name):
        return prepare(self, data, processing_class, args, packing, formatting_func, name)

    monkeypatch.setattr(SFTTrainer, "_prepare_dataset", renamed)
    # when
    trained = sft.train(dict(), keep=True, attach={})
    # then
    assert [line for line in said() if "row ids are not kept" in line and "TRL" in line]
    assert trained.log.step_columns().step.tolist() == list(range(1, 8))


@pytest.mark.parametrize("stream", [False, True])
def test_with_a_trl_that_drops_columns_it_says_so_and_the_trainer_is_built_without(sft, said, monkeypatch, stream):
    # given
    prepare = SFTTrainer._prepare_dataset

    def dropping(self, dataset, *args, **kwargs):
        prepared = prepare(self, dataset, *args, **kwargs)
        return prepared.map(lambda row: {}, remove_columns=[COLUMN]) if COLUMN in next(iter(prepared)) else prepared

    monkeypatch.setattr(SFTTrainer, "_prepare_dataset", functools.wraps(prepare)(dropping))
    # when
    trained = sft.train(dict(stream=stream, args=dict(max_steps=3)), keep=True, attach={})
    # then
    assert [line for line in said() if "drops columns while it prepares its data" in line]
    assert trained.log.step_columns().step.tolist() == [1, 2, 3]


def test_a_subclass_that_drops_columns_is_told(sft, said):
    class Drops(SFTTrainer):
        def _prepare_dataset(self, dataset, *args, **kwargs):
            return super()._prepare_dataset(dataset.select_columns(["text"]), *args, **kwargs)

    class DropsAfterwards(SFTTrainer):
        def _prepare_dataset(self, dataset, *args, **kwargs):
            return super()._prepare_dataset(dataset, *args, **kwargs).select_columns(["input_ids", "labels"])

    # when columns are dropped before TRL prepares the data, its numbers count what TRL is given
    assert_costs_are_right(sft.train(still({}), keep=True, attach={}, cls=Drops))
    assert [line for line in said() if "numbered in the dataset that Drops._prepare_dataset hands on to TRL's" in line]
    # and when the dataset is replaced afterwards
    sft.train(dict(), keep=True, attach={}, cls=DropsAfterwards)
    [line] = [line for line in said() if "train_dataset was replaced" in line]
    assert "DropsAfterwards._prepare_dataset changed it after TRL had prepared it" in line
    assert "before you call super()._prepare_dataset" in line
