"""A Trainer whose dataset is replaced between attach and train: the log is that of the one it trains on."""

import trimtab
from trimtab.dataset import describe


def test_the_log_describes_the_dataset_that_was_trained_on_and_it_is_said(bench, said):
    # given
    first, second = bench.rows(), bench.rows()[::-1][:9]
    trainer = bench.trainer(dataset=first)
    run = trimtab.attach(trainer)
    # when
    trainer.train_dataset = second
    trainer.train()
    # then
    log = trimtab.open_log(run.folder)
    assert (log.header.num_rows, log.header.dataset_fingerprint) == (9, describe(second).fingerprint)
    assert sorted(log.rows().numpy()["row"].tolist()) == list(range(9))
    assert len([line for line in said() if "train_dataset was replaced after attach" in line]) == 1


def test_a_run_that_was_named_keeps_its_name_and_one_that_has_begun_is_closed(bench, tmp_path):
    # given one run that has a name, and one in which something was recorded
    trainers = [bench.trainer(dataset=bench.rows()) for _ in range(2)]
    named = trimtab.attach(trainers[0], run_id="mine")
    begun = trimtab.attach(trainers[1])
    begun.event("note", text="before")
    old = begun.folder
    # when
    for trainer in trainers:
        trainer.train_dataset = bench.rows()[:9]
        trainer.train()
    # then
    assert named.folder.name == "mine"
    assert trimtab.open_log(named.folder).header.num_rows == 9
    assert begun.folder != old
    assert trimtab.open_log(old).header.num_rows == 13
    assert [event.kind for event in trimtab.open_log(old).event_list()] == ["note", "end"]


def test_a_second_training_on_another_dataset_is_a_run_of_that(bench, said):
    trainer = bench.trainer(dataset=bench.rows())
    run = trimtab.attach(trainer)
    trainer.train()
    trainer.train_dataset = bench.rows()[:9]
    trainer.train()
    assert trimtab.open_log(run.folder).header.num_rows == 9
    assert len([line for line in said() if "train_dataset was replaced after attach" in line]) == 1
