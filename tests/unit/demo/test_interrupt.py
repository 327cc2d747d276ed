"""Ctrl-C: noted even where the exception is swallowed, and obeyed once."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from trimtab.demo.interrupt import Interrupt


def test_an_interrupt_that_was_swallowed_is_raised_at_the_next_check() -> None:
    with Interrupt() as interrupt:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

        assert interrupt.happened
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_a_second_interrupt_does_not_disturb_the_cleaning_up() -> None:
    with Interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pytest.fail("the second interrupt was raised")


def test_without_an_interrupt_nothing_is_raised_and_the_former_handler_returns() -> None:
    before = signal.getsignal(signal.SIGINT)

    with Interrupt() as interrupt:
        interrupt.check()

    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_it_leaves_the_handler_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def enter() -> None:
        with Interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()

    assert seen == [before]
