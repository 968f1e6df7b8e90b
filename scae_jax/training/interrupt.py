"""Ctrl-C and SIGTERM: the first asks the run to save and stop, the second ends it at once."""

import os
import signal
import socket
import sys
import threading
import time
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# `timeout` and job managers signal a process and then its group: two signals within these seconds
# are one request.
ONE_REQUEST = 0.2


class StopRequest:
  """While entered, `signal_number` becomes the signal that asked to stop.

  Python runs handlers only between two instructions of the main thread, which may be inside a
  compilation for a minute. So a thread reads the numbers of signals, which the interpreter writes
  to its wakeup socket at once.
  """

  def __init__(self):
    self.signal_number: int | None = None
    self._before: dict[int, Any] = {}

  def __enter__(self) -> "StopRequest":
    if threading.current_thread() is not threading.main_thread():
      return self  # Python lets only the main thread receive signals
    self._reading, self._writing = socket.socketpair()
    self._writing.setblocking(False)
    self._wakeup_before = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
    for number in _SIGNALS:
      # Python writes to the wakeup socket only for signals that have a Python handler.
      self._before[number] = signal.signal(number, lambda *_: None)
    self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    if not self._before:
      return
    signal.set_wakeup_fd(self._wakeup_before)
    for number, handler in self._before.items():
      signal.signal(number, handler)
    self._writing.close()
    self._thread.join()
    self._reading.close()

  def _watch(self) -> None:
    first = 0.0
    while received := self._reading.recv(1):  # empty once the other end is closed
      number = received[0]
      if number not in _SIGNALS:
        continue
      if self.signal_number is None:
        self.signal_number, first = number, time.monotonic()
        _tell(
          f"{signal.Signals(number).name}: saving at the end of the steps now on the device;"
          " once more to stop at once without saving"
        )
      elif time.monotonic() - first > ONE_REQUEST:
        _tell("stopped at once; the same command resumes from the last checkpoint, if there is one")
        os._exit(128 + number)


def _tell(message: str) -> None:
  show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
  print(f"{show_cursor}\n{message}", file=sys.stderr, flush=True)
