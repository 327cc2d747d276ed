"""The rows to leave out of the next run."""

from trimtab.report.drop_list import drop_list


def test_only_rows_that_made_a_finding_are_listed_and_each_once(make_findings, make_spike):
    spikes = (
        make_spike(row=5, row_share=0.0),
        make_spike(row=3, row_share=0.9),
        make_spike(row=4, row_share=0.3),
        make_spike(row=5, row_share=0.6),
        make_spike(row=None, row_share=None),
        make_spike(row=6, row_share=1.0, is_only_row=True),
        make_spike(row=7, row_share=0.9, kind="grad_norm", signal="grad_norm", severity="notice"),
    )
    assert drop_list(make_findings(spikes=spikes), dataset_fingerprint="f") == {
        "version": 1,
        "run_id": "20261129-210313-a1b2c3",
        "dataset_fingerprint": "f",
        "rows": [5, 3],
    }


def test_no_finding_is_an_empty_list(make_findings):
    assert drop_list(make_findings(spikes=()), dataset_fingerprint=None)["rows"] == []
