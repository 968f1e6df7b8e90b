"""The folder of a run: its config, what may change when it is resumed, and who may write.

config.json    the resolved config of the run
checkpoints/   one folder a step
metrics.jsonl  training and held-out metrics
tensorboard/   if asked for
evaluation/    the report
"""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from ml_collections import ConfigDict

from scae_jax.training.config import differences, dump_config, parse_config
from scae_jax.training.errors import RunError
from scae_jax.training.metrics import write_atomically

# What a resumed run may change: none of it changes the parameters of a step.
RESUMABLE_CHANGES = frozenset(
  {
    "train.num_steps",  # to a larger number: extends the run
    "train.steps_per_dispatch",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.tensorboard",
    "data.dir",
    "data.cache_dir",
  }
)


def checkpoint_directory(workdir: pathlib.Path) -> pathlib.Path:
  """Where a run's checkpoints are; absolute, as orbax wants it."""
  return workdir.absolute() / "checkpoints"


def load_config(workdir: str | pathlib.Path) -> ConfigDict:
  """The resolved config of a run.

  Raises:
    RunError: the folder holds no run, or its config cannot be read.
  """
  path = pathlib.Path(workdir) / "config.json"
  if not path.is_file():
    raise RunError(f"{workdir} holds no run: there is no {path}. Name the --workdir of train.py.")
  try:
    return parse_config(path.read_text(encoding="utf-8"))
  except (ValueError, OSError) as error:
    raise RunError(f"{path} cannot be read: {error}. Train in a new --workdir.") from error


def check_same_run(workdir: pathlib.Path, config: ConfigDict) -> None:
  """Nothing happens if the folder is new or holds a run that `config` may resume.

  The keys in `RESUMABLE_CHANGES` may differ, `train.num_steps` only upwards. `evaluation.*` may
  differ too: it is read after training. Writes nothing.

  Raises:
    RunError: another key differs; the message lists each with both values.
  """
  if not (workdir / "config.json").exists():
    return
  changed = {
    key: pair
    for key, pair in differences(load_config(workdir), config).items()
    if not key.startswith("evaluation.")
    and (key not in RESUMABLE_CHANGES or (key == "train.num_steps" and pair[1] < pair[0]))
  }
  if changed:
    lines = [f"  {key}: {old!r} there, {new!r} given" for key, (old, new) in changed.items()]
    raise RunError(
      f"{workdir} holds a run with another config:\n"
      + "\n".join(lines)
      + "\nGive another --workdir, or the same config. A resumed run may change"
      f" {', '.join(sorted(RESUMABLE_CHANGES))} (num_steps only upwards)."
    )


@contextlib.contextmanager
def open_for_writing(workdir: pathlib.Path, config: ConfigDict) -> Iterator[None]:
  """Makes the folder, saves the config in it, and keeps other processes from training in it.

  The lock goes with the process, however that ends.

  Raises:
    RunError: the folder cannot be written, or another process trains in it.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    lock = os.open(workdir / "lock", os.O_RDWR | os.O_CREAT, 0o644)
  except OSError as error:
    raise RunError(
      f"the workdir {workdir} cannot be written: {error}. Give a --workdir that can."
    ) from error
  try:
    _lock(lock, workdir)
    try:
      write_atomically(workdir / "config.json", dump_config(config))
    except OSError as error:
      raise RunError(
        f"the workdir {workdir} cannot be written: {error}. Give a --workdir that can."
      ) from error
    yield
  finally:
    os.close(lock)


def _lock(descriptor: int, workdir: pathlib.Path) -> None:
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    raise RunError(
      f"another process is training in {workdir}. Wait for it, or give another --workdir."
    ) from error
