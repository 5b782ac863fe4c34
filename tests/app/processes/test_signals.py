"""Signals set an event, end a start-up, and give their handlers back."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from springtide.app.processes.signals import STOP_SIGNALS, SignalEvent, StopSignals, handled_signals, stop_on_signals
from tests.support.processes import IMPORT_PATH

ROOT = Path(__file__).parents[3]


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_only_sets_stopping(number: signal.Signals) -> None:
    before = handlers()
    with StopSignals() as signals:
        assert not signals.stopping
        os.kill(os.getpid(), number)
        assert signals.wait(60.0)
        assert signals.stopping
    assert handlers() == before


def test_a_second_ctrl_c_is_a_keyboard_interrupt() -> None:
    signals = StopSignals()
    signals.stop()
    with pytest.raises(KeyboardInterrupt), signals:
        signal.raise_signal(signal.SIGINT)


def test_a_command_stops_on_both_signals() -> None:
    with handled_signals(dict.fromkeys(STOP_SIGNALS, lambda *_: None)):
        stopping = stop_on_signals()
        signal.raise_signal(signal.SIGTERM)
        assert stopping.is_set()


def test_another_thread_than_the_main_one_installs_no_handler() -> None:
    before, seen = handlers(), []

    def run() -> None:
        with StopSignals() as signals:
            seen.append((handlers() == before, signals.stopping))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(True, False)]


def run_code(code: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ) | {"PYTHONPATH": IMPORT_PATH}, timeout=300
    ).returncode


def test_a_signal_in_the_middle_of_a_wait_ends_it() -> None:
    """With the lock of a threading.Event the handler would wait for the thread that it interrupts."""
    code = (
        "import signal; from springtide.app.processes.signals import SignalEvent\n"
        "for number in range(300):\n"
        "    event = SignalEvent()\n"
        "    signal.signal(signal.SIGALRM, lambda *_: event.set())\n"
        "    signal.setitimer(signal.ITIMER_REAL, 1e-4 + number * 1e-6)\n"
        "    while not event.wait(0.0): pass\n"
    )
    assert run_code(code) == 0


def test_an_event_that_was_cleared_can_be_set_again() -> None:
    event = SignalEvent()
    assert not event.wait(0.0)
    for _ in range(2):
        threading.Timer(0.01, event.set).start()
        assert event.wait()
        assert event.wait(0.0)
        assert event.is_set()
        event.clear()
        assert not event.is_set()
        assert not event.wait(0.001)


def test_a_start_up_ends_at_once_with_exit_code_0() -> None:
    code = "import signal; from springtide.app.processes.signals import exit_on_signals; exit_on_signals();"
    assert run_code(f"{code} signal.raise_signal(signal.SIGTERM); raise SystemExit(3)") == 0


def test_a_blocked_command_exits_with_1_after_its_grace() -> None:
    code = "import signal, time; from springtide.app.processes.signals import stop_on_signals;"
    code += "stop_on_signals(grace_seconds=0.1);"
    assert run_code(f"{code} signal.raise_signal(signal.SIGINT); time.sleep(600)") == 1
