"""The end of the process by a signal: soon, whatever it does then; no import that costs time."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TypeVar

T = TypeVar("T")
end_process = os._exit  # even while somebody's code is kept from it

# Seconds.
GRACE = 1.5  # whatever is waited for after somebody has asked the run to stop
STOP = 1.9  # a signal has ended the process
SOON = 0.001  # what was raised for it, and lost, is raised again
AGAIN = 0.05  # and once more
TICK = 0.25  # between two looks at whether somebody's own code takes too long

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ends = math.inf  # by `time.monotonic`, when every wait of this process ends
_signals: list[int] = []  # that have come
_unsaid = threading.Lock()  # held once somebody has told that a signal ends the process


def at() -> float:
    """The end of all waits of this process, by `time.monotonic`; infinite where nobody stops it."""
    return _ends


def signal_that_came() -> int | None:
    """The signal that ends this process, even where its exception was swallowed."""
    return _signals[0] if _signals else None


def is_first_to_tell() -> bool:
    """True for the first caller only, so that the message about a signal is printed once."""
    return _unsaid.acquire(blocking=False)


def stop() -> None:
    """End every wait of this process, in any thread, `GRACE` seconds from now."""
    global _ends  # noqa: PLW0603 - of the process, as the signal is
    _ends = min(_ends, time.monotonic() + GRACE)


def end_on(numbers: Iterable[int], told: Callable[[int], NoReturn]) -> None:
    """Have signals end the process within `STOP` seconds, whatever it is doing then.

    Args:
        told: Called in the main thread with the one that came; it raises a KeyboardInterrupt.
    """
    numbers = frozenset(numbers)

    def end(number: int, _frame: FrameType | None) -> None:
        for one in numbers:
            # A second one must not interrupt the cleaning up. One that had come by then, and were
            # ignored now, Python would tell on stderr as a race of its own.
            signal.signal(one, lambda _number, _frame: None)
        _signals.append(number)
        stop()
        told(number)

    def again(_number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is tell_again.__code__:  # where it would be lost once more
                return
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0)
        told(_signals[0])

    complain = sys.unraisablehook

    def tell_again(lost: sys.UnraisableHookArgs) -> None:
        # Raised where Python ignores it: in a callback of the garbage collector, as Hypothesis has
        # one, or in a `__del__`. It comes again as soon as that is over.
        if not (_signals and isinstance(lost.exc_value, KeyboardInterrupt)):
            complain(lost)
            return
        # Once might be just before a call that blocks, which would not notice: until it is heard.
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)

    sys.unraisablehook = tell_again
    woken, waker = socket.socketpair()
    waker.setblocking(False)  # noqa: FBT003 - the standard library's
    signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_end_anyway, args=(woken, numbers), daemon=True).start()
    for number in numbers:
        signal.signal(number, end)


def interrupted(act: Callable[[], T], seconds: float, error: Exception) -> T:
    """Run Python code of somebody else's, which may never end.

    Ticks are counted, and not the clock: it goes on while this process is stopped, or asleep.

    Args:
        seconds: How long it may take; in the main thread, where alone it can be interrupted.
        error: Raised in its midst then, and with each tick after it, lest the code swallows it.
    """
    if threading.current_thread() is not threading.main_thread() or _signals:
        return act()
    ticks = 0

    def tick(_number: int, _frame: FrameType | None) -> None:
        nonlocal ticks
        ticks += 1
        if ticks * TICK >= seconds:
            raise error

    before = signal.signal(signal.SIGALRM, tick)
    try:
        signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        return act()
    finally:
        if signal.getsignal(signal.SIGALRM) is tick:  # else a signal's exception comes again by it
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextmanager
def in_one_piece() -> Iterator[None]:
    """Begin processes while signals wait: one that is left half begun complains on stderr.

    Ctrl-C is not for the processes that begin here, not even before they can say so. And where this
    one has to leave them as they are, Python's resource tracker removes what they shared, and need
    not tell so.
    """
    came: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # nobody else may
        for number in _ENDING:
            if signal.getsignal(number) not in {None, signal.SIG_IGN}:
                handlers[number] = signal.signal(number, lambda one, _frame: came.append(one))
    known = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    warnings = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (warnings, "ignore:resource_tracker")))
    try:
        yield
    finally:
        if warnings is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = warnings
        signal.pthread_sigmask(signal.SIG_SETMASK, known)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for one in came[:1]:
        signal.raise_signal(one)


def _end_anyway(woken: socket.socket, numbers: frozenset[int]) -> None:
    """End a process whose main thread does not get to its handler of a signal, or not to its end.

    The byte that this waits for is written when the kernel delivers the signal, even while the main
    thread stands in a call that does not return, if that lets other threads run. What is left is
    removed by the watchdog.
    """
    number = 0
    while number not in numbers:
        (number,) = woken.recv(1)
    time.sleep(STOP)
    if is_first_to_tell():
        with suppress(OSError):
            os.write(2, f"queueproof: {ended_by(number)}\n".encode())
    end_process(128 + number)


def ended_by(number: int) -> str:
    """The words on a command that a signal ends."""
    name = signal.Signals(number).name
    return "interrupted" if number == signal.SIGINT else f"stopped by {name}"
