"""Ctrl-C, SIGTERM and SIGHUP, at any moment of a program.

Python runs handlers only between two instructions of the main thread, which may be inside a
compilation for a minute, and drops what they raise inside a callback. So handlers do nothing: a
thread reads the numbers of signals, which the interpreter writes to its wakeup socket at once.

This module imports nothing that takes time: programs listen before they import anything else.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# Windows has no SIGHUP, which a terminal sends as it closes.
_SIGNALS = [
  getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# `timeout` and job managers signal a process and then its group, and a closing terminal sends
# SIGHUP twice: signals within these seconds are one request.
ONE_REQUEST = 0.2
# Variable of the environment: the number of the process without which this one must not go on.
PARENT = "SCAE_JAX_PARENT"

_receive: Callable[[int], None] | None = None  # of the innermost `on_signal`
_before: dict[int, Any] = {}  # handlers that were there before the outermost


@contextlib.contextmanager
def on_signal(receive: Callable[[int], None]) -> Iterator[None]:
  """While entered, calls `receive`, in a thread, with the number of each signal that asks to stop.

  The innermost `receive` is called. Does nothing outside of the main thread, the only one that
  Python lets receive signals.
  """
  global _receive
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  outer, _receive = _receive, receive
  try:
    with _listening() if outer is None else contextlib.nullcontext():
      yield
  finally:
    _receive = outer


@contextlib.contextmanager
def _listening() -> Iterator[None]:
  reading, writing = socket.socketpair()
  writing.setblocking(False)
  wakeup_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
  # Under nohup, SIGHUP is ignored and stays so. Python writes only those that have a handler.
  handled = [number for number in _SIGNALS if not _is_ignored_hangup(number)]
  _before.update({number: signal.signal(number, lambda *_: None) for number in handled})
  thread = threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True)
  thread.start()
  try:
    yield
  finally:
    _restore_handlers(wakeup_before)
    writing.close()
    thread.join()
    reading.close()


def _restore_handlers(wakeup: int = -1) -> None:
  signal.set_wakeup_fd(wakeup)
  while _before:
    signal.signal(*_before.popitem())


if hasattr(os, "register_at_fork"):
  # A forked child has no such thread, and would write its signals to the socket of its parent.
  os.register_at_fork(after_in_child=lambda: _before and _restore_handlers())


def ignore_signals() -> None:
  """Ignores them from here on, also after `on_signal`: all is done, and the process is ending."""
  _before.clear()
  for number in _SIGNALS:
    signal.signal(number, signal.SIG_IGN)


def _is_ignored_hangup(number: int) -> bool:
  is_hangup = signal.Signals(number).name == "SIGHUP"
  return is_hangup and signal.getsignal(number) == signal.SIG_IGN


def _watch(reading: socket.socket) -> None:
  while received := reading.recv(1):  # empty once the other end is closed
    if received[0] in _SIGNALS and _receive is not None:
      _receive(received[0])


class StopRequest:
  """`signal_number` is the signal that asked to save and stop; a second one ends the process."""

  def __init__(self):
    self.signal_number: int | None = None
    self._first = 0.0

  def receive(self, number: int) -> None:
    """Takes note of a signal."""
    if self.signal_number is None:
      self.signal_number, self._first = number, time.monotonic()
      tell(
        f"{signal.Signals(number).name}: saving at the end of the steps now on the device;"
        " once more to stop at once without saving",
        below_bar=True,
      )
    elif time.monotonic() - self._first > ONE_REQUEST:
      end(number, "the same command resumes from the last checkpoint, if there is one")


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
  """While entered, a signal is a request to save and stop; one that came too late is sent again."""
  stop = StopRequest()
  with on_signal(stop.receive):
    yield stop
  if stop.signal_number is not None:
    signal.raise_signal(stop.signal_number)


def end(number: int, message: str) -> None:
  """Ends the process at once because of a signal; the exit code is what shells report."""
  try:
    tell(f"stopped at once by {signal.Signals(number).name}: {message}", below_bar=True)
  finally:
    os._exit(128 + number)


def tell(message: str, *, below_bar: bool = False) -> None:
  """Prints to standard error, or nowhere if nobody reads it: `| tee` ends at Ctrl-C before us.

  What is left to be written goes the same way, or Python would end with an exit code of its own.
  """
  if below_bar and sys.stderr.isatty():
    message = f"\x1b[?25h\n{message}"  # a progress bar hides the cursor
  for stream, text in ((sys.stdout, ""), (sys.stderr, f"{message}\n")):
    try:
      stream.write(text)
      stream.flush()
    except OSError:
      with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def end_with_parent() -> None:
  """Sends this process SIGTERM when the one that `PARENT` names is gone, however it ended."""
  parent = os.environ.pop(PARENT, "")

  def watch() -> None:
    while os.getppid() == int(parent):
      time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)

  if parent:
    threading.Thread(target=watch, name="parent", daemon=True).start()
