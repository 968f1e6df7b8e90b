"""Ctrl-C, SIGTERM and SIGHUP, at any moment of a program.

Python runs handlers only between two instructions of the main thread, which may be compiling for a
minute, and it drops an exception that a handler raises inside a callback. So handlers do nothing
here. The interpreter writes a signal's number to a socket at once, and a thread reads it there.

This module imports nothing that is slow to import: programs enter `on_signal` before slow imports.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

# Windows has no SIGHUP, which a terminal sends as it closes.
_SIGNALS = [
  getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# Signals within these seconds count as one request: `timeout` and job managers signal a process and
# then its group, and a closing terminal sends SIGHUP twice.
ONE_REQUEST = 0.2
# Environment variable with the number of the process after whose end this one must end, too.
PARENT = "SCAE_JAX_PARENT"

_receive: Callable[[int], None] | None = None  # of the innermost `on_signal`
_previous_handlers: dict[int, Any] = {}  # from before the outermost `on_signal`


@contextlib.contextmanager
def on_signal(receive: Callable[[int], None]) -> Iterator[None]:
  """While entered, a thread calls `receive` with the number of each signal that asks to stop.

  Only the `receive` of the innermost block is called. Outside of the main thread this does nothing:
  Python lets only the main thread handle signals.
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
  previous_wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
  # Under nohup, SIGHUP is ignored and stays so. Python writes only signals that have a handler.
  handled = [number for number in _SIGNALS if not _is_ignored_hangup(number)]
  _previous_handlers.update({number: signal.signal(number, lambda *_: None) for number in handled})
  thread = threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True)
  thread.start()
  try:
    yield
  finally:
    _restore_handlers(previous_wakeup)
    writing.close()
    thread.join()
    reading.close()


def _restore_handlers(wakeup: int = -1) -> None:
  signal.set_wakeup_fd(wakeup)
  while _previous_handlers:
    signal.signal(*_previous_handlers.popitem())


if hasattr(os, "register_at_fork"):
  # A forked child has no such thread, and would write its signals to the socket of its parent.
  os.register_at_fork(after_in_child=lambda: _previous_handlers and _restore_handlers())


def ignore_signals() -> None:
  """Ignores signals from now on, also after `on_signal`, for a process that is about to end."""
  _previous_handlers.clear()
  for number in _SIGNALS:
    signal.signal(number, signal.SIG_IGN)


def _is_ignored_hangup(number: int) -> bool:
  is_hangup = signal.Signals(number).name == "SIGHUP"
  return is_hangup and signal.getsignal(number) == signal.SIG_IGN


def _watch(reading: socket.socket) -> None:
  while received := reading.recv(1):  # empty when the other end is closed
    if received[0] in _SIGNALS and _receive is not None:
      _receive(received[0])


class StopRequest:
  """`signal_number` is the signal that asked to save and stop; a second one ends the process."""

  def __init__(self):
    self.signal_number: int | None = None
    self._first = 0.0

  def receive(self, number: int) -> None:
    """Records a first signal; a second one ends the process."""
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
  """While entered, a signal is a request to save and stop; if it was not raised, it is sent again.

  A request that comes too late leaves the block without an error; then the signal is raised anew.
  """
  stop = StopRequest()
  with on_signal(stop.receive):
    yield stop
  if stop.signal_number is not None:
    signal.raise_signal(stop.signal_number)


def end(number: int, message: str) -> None:
  """Ends the process at once because of a signal, with the exit code that shells report for it."""
  try:
    tell(f"stopped at once by {signal.Signals(number).name}: {message}", below_bar=True)
  finally:
    os._exit(128 + number)


def tell(message: str, *, below_bar: bool = False) -> None:
  """Prints to standard error; the message is lost if its reader has ended, as `tee` does at Ctrl-C.

  Streams without a reader are redirected to nowhere: otherwise Python fails to flush them at its
  end and changes the exit code.
  """
  if below_bar and sys.stderr.isatty():
    message = f"\x1b[?25h\n{message}"  # a progress bar hides the cursor
  write_to(sys.stdout, "")
  write_to(sys.stderr, f"{message}\n")


def say(message: str) -> None:
  """Prints to standard output; the message is lost if its reader has ended, as `head` does."""
  write_to(sys.stdout, f"{message}\n")


def write_to(stream: TextIO, text: str) -> None:
  """Writes and flushes; the text is lost if the stream's reader has ended."""
  try:
    stream.write(text)
    stream.flush()
  except OSError:
    with open(os.devnull, "w") as nowhere:
      os.dup2(nowhere.fileno(), stream.fileno())


def end_with_parent() -> None:
  """Sends SIGTERM to this process when the one that `PARENT` names has ended for any reason."""
  parent = os.environ.pop(PARENT, "")

  def watch() -> None:
    while os.getppid() == int(parent):
      time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)

  if parent:
    threading.Thread(target=watch, name="parent", daemon=True).start()
