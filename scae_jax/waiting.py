"""Progress messages of work that may take long."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PATIENCE = 1.5  # seconds


@contextlib.contextmanager
def waiting(task_name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
  """Names the running task on standard error if it lasts longer than `PATIENCE`.

  On a terminal it is a progress bar, which is removed at the end; elsewhere it is one line. Yields
  a function that advances the bar by a number of `total`; without a total the bar only pulsates.
  Must not be nested.
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
  task = progress.add_task(task_name, total=total)

  def show() -> None:
    if console.is_terminal:
      progress.start()
    else:
      console.print(f"{task_name} ...", markup=False, soft_wrap=True)

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
