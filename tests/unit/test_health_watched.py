"""What is to be known of every kind of finding."""

from typing import get_args

from trimtab.watched import KINDS, SEVERITIES, FindingKind


def test_every_kind_of_finding_has_its_facts():
    assert tuple(KINDS) == get_args(FindingKind)


def test_severities_stand_with_the_worst_in_front():
    assert SEVERITIES == ("critical", "warning", "notice")


def test_what_no_log_can_show_is_the_memory_of_each_rank():
    assert {kind for kind, facts in KINDS.items() if facts.only_live} == {"host_memory", "device_memory"}
