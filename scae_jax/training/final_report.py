"""The report that ends a training, of which a signal or an error loses nothing."""

import contextlib
import pathlib
import shlex
from collections.abc import Iterator

from jaxtyping import TypeCheckError

from scae_jax.training.config import as_started
from scae_jax.training.errors import ReportError, RunError, explained
from scae_jax.training.interrupt import end, on_signal


@contextlib.contextmanager
def training_saved(step: int, workdir: pathlib.Path) -> Iterator[None]:
  """The block reports on a run. A signal, or `ReportError` if it fails, says how to try again."""
  again = as_started(f"python evaluate.py --workdir={shlex.quote(str(workdir))}")
  trained = f"the training is finished and saved at step {step}"
  try:
    with on_signal(lambda number: end(number, f"{trained}; `{again}` reports on it")), explained():
      yield
  except (RunError, TypeCheckError) as error:  # the latter of arrays of a system of one's own
    raise ReportError(
      f"{trained}, but its report failed; `{again}` tries it again. Why: {error}"
    ) from error
