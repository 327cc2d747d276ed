"""The rows to leave out of the next run."""

import dataclasses
import json

import pytest

from trimtab.analysis import drop_list as room
from trimtab.drop_list import read_drop_list
from trimtab.findings import Blame, Findings, Spike
from trimtab.log.columns import IdColumns
from trimtab.values import RunHeader


def drop_list(findings, *, dataset_fingerprint, num_rows=1000, ids=None):
    header = RunHeader(run_id="r", backend="test", dataset_fingerprint=dataset_fingerprint, num_rows=num_rows)
    return room.drop_list(findings, header=header, ids=IdColumns.empty() if ids is None else ids)


@pytest.fixture
def make_findings():
    """Findings with a spike for each blame, and where given one for the step that is listed."""

    def make(*blames, listed=None):
        spikes = tuple(
            Spike(
                step=index,
                first=index,
                last=index,
                num_steps=1,
                kind="spike",
                signal="loss",
                severity="warning",
                rule="robust",
                value=9.0,
                loss=9.0,
                baseline=1.0,
                score=20.0,
                blame=blame,
            )
            for index, blame in enumerate(blames)
        )
        return Findings(
            run_id="r",
            source="path/r",
            rule="robust",
            num_steps=100,
            step=None if listed is None else listed.step,
            step_reason=None,
            spikes=spikes,
            spikes_left_out=0,
            rows=(),
            rows_left_out=0,
            notices=(),
            blame=listed,
        )

    return make


def test_only_rows_that_are_blamed_are_listed_each_once_and_with_the_reason(make_findings):
    findings = make_findings(
        Blame(step=50, rows=(5, 9), reason="nonfinite"),
        Blame(step=41, rows=(3,), reason="share"),
        Blame(step=60, rows=(), reason="mostly_nonfinite"),
        None,
        Blame(step=70, rows=(5,), reason="share"),
    )
    assert drop_list(findings, dataset_fingerprint="f") == {
        "version": 1,
        "run_id": "r",
        "dataset_fingerprint": "f",
        "num_rows": 1000,
        "rows": [5, 9, 3],
        "digests": [None, None, None],
        "findings": [
            {
                "step": 50,
                "rows": [5, 9],
                "reason": "the loss is not finite",
            },
            {"step": 41, "rows": [3], "reason": "the row carries half of the step's loss or more"},
            {
                "step": 60,
                "rows": [],
                "reason": "half of the step's rows or more are not finite: the model was broken, not its rows",
            },
            {"step": 3, "rows": [], "reason": "no rows of the step were recorded"},
            {"step": 70, "rows": [5], "reason": "the row carries half of the step's loss or more"},
        ],
    }


def test_a_row_named_for_the_listed_step_is_listed_too_and_a_step_stands_once(make_findings):
    spike = Blame(step=41, rows=(3,), reason="share")
    document = drop_list(
        make_findings(spike, listed=Blame(step=42, rows=(7,), reason="share")), dataset_fingerprint=None
    )
    assert (document["rows"], [entry["step"] for entry in document["findings"]]) == ([3, 7], [41, 42])
    document = drop_list(make_findings(spike, listed=spike), dataset_fingerprint=None)
    assert (document["rows"], [entry["step"] for entry in document["findings"]]) == ([3], [41])
    # then: a quiet step that was asked for is nothing to give a reason for
    quiet = Blame(step=2, rows=(), reason="spread")
    assert [
        entry["step"] for entry in drop_list(make_findings(spike, listed=quiet), dataset_fingerprint=None)["findings"]
    ] == [41]


def test_a_gradient_norm_whose_first_step_has_no_rows_hides_no_row_of_a_finding_at_its_peak(make_findings):
    # given: a norm that is out of line from 45 to 50, and a loss at 50
    findings = make_findings(Blame(step=50, rows=(5,), reason="share"), None)
    loss, norm = findings.spikes
    norm = dataclasses.replace(norm, severity="notice", signal="grad_norm", kind="grad_norm", first=45, step=50)
    # when
    document = drop_list(dataclasses.replace(findings, spikes=(loss, norm)), dataset_fingerprint=None)
    # then
    assert [(entry["step"], entry["rows"]) for entry in document["findings"]] == [(50, [5]), (45, [])]
    assert document["rows"] == [5]


def test_no_finding_is_an_empty_list(make_findings):
    document = drop_list(make_findings(), dataset_fingerprint=None)
    assert (document["rows"], document["findings"]) == ([], [])


def test_rows_whose_content_is_known_are_listed_with_its_digest(make_findings, make_ids, tmp_path):
    # given: of row 9 no digest is known, and the number 3 stood for rows of different content
    ids = make_ids([(3, -1, 0, "c"), (5, -1, -2, "e"), (8, -1, 77, None), (9, -1, None, "i")])
    findings = make_findings(Blame(step=50, rows=(5, 9, 3, 4), reason="nonfinite"))
    # when
    document = drop_list(findings, dataset_fingerprint=None, num_rows=None, ids=ids)
    # then
    assert document["num_rows"] is None
    assert document["digests"] == ["fffffffffffffffe", None, None, None]
    # and it is what the other half reads
    (tmp_path / "drop.json").write_text(json.dumps(document))
    assert read_drop_list(tmp_path / "drop.json").digests == {5: -2, 9: None, 3: None, 4: None}
