"""A sign of life from work that may take long."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PATIENCE = 1.5  # seconds


@contextlib.contextmanager
def waiting(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
  """Says on standard error what is being done, once it has lasted longer than `PATIENCE`.

  On a terminal that is a bar, which goes away in the end; elsewhere it is one line. Yields a
  function that moves the bar on, of `total`; without a total the bar only moves to and fro.
  Not for use within itself.
  """
  console = Console(stderr=True, highlight=False)
  count = () if total is None else (MofNCompleteColumn(),)
  progress = Progress(
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    *count,
    TimeElapsedColumn(),
    console=console,
    transient=True,
    redirect_stdout=False,
  )
  task = progress.add_task(what, total=total)

  def show() -> None:
    if console.is_terminal:
      progress.start()
    else:
      console.print(f"{what} ...", markup=False, soft_wrap=True)

  timer = threading.Timer(PATIENCE, show)
  timer.daemon = True
  timer.start()
  try:
    yield lambda done: progress.advance(task, done)
  finally:
    timer.cancel()
    timer.join()
    if progress.live.is_started:
      progress.stop()
