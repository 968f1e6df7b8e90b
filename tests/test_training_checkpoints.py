"""Checkpoints: which are kept, what is restored, and damaged ones."""

import asyncio
import pathlib
import re
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.errors import RunError
from scae_jax.training.checkpoint import Checkpoints, Progress
from scae_jax.training.hosts import make_mesh, replicated
from scae_jax.training.state import TrainState, placed
from tests.runs import truncate


def make_state(step: int) -> TrainState:
  state = TrainState(
    step=jnp.int32(step),
    params={"weights": jax.random.normal(jax.random.key(step), (64, 32)), "bias": jnp.ones(3)},
    opt_state=(jnp.float32(step), ()),
    rng=jax.random.key(7),
  )
  return jax.device_put(state, replicated(make_mesh()))


def template() -> TrainState:
  return placed(jax.eval_shape(lambda: make_state(0)), make_mesh())


def progress(step: int, loss: float | None = None) -> Progress:
  return Progress(step, {"count": 1, "sums": {"total": 0.1 * step}}, loss)


def save_all(directory: pathlib.Path, losses: dict[int, float | None], keep: int = 2) -> None:
  with Checkpoints(directory, keep=keep, writable=True) as checkpoints:
    for step, loss in losses.items():
      checkpoints.save(make_state(step), progress(step, loss))


def open_to_read(directory: pathlib.Path, messages: list[str] | None = None) -> Checkpoints:
  say = (lambda _: None) if messages is None else messages.append
  return Checkpoints(directory, keep=1, writable=False, say=say)


def steps_in(directory: pathlib.Path) -> list[int]:
  with open_to_read(directory) as checkpoints:
    return checkpoints.steps()


def assert_is_state_of(state: TrainState, step: int) -> None:
  expected = make_state(step)
  assert int(state.step) == step
  np.testing.assert_array_equal(state.params["weights"], expected.params["weights"])
  np.testing.assert_array_equal(state.opt_state[0], expected.opt_state[0])
  np.testing.assert_array_equal(jax.random.key_data(state.rng), jax.random.key_data(expected.rng))


def test_latest_n_and_the_best_are_kept(tmp_path):
  (tmp_path / "99.orbax-checkpoint-tmp").mkdir()  # of a process that was killed
  assert steps_in(tmp_path) == []
  save_all(tmp_path, {1: 3.0, 2: 1.0, 3: 2.0, 4: 5.0, 5: None})
  assert not (tmp_path / "99.orbax-checkpoint-tmp").exists()
  with open_to_read(tmp_path) as checkpoints:
    assert checkpoints.steps() == [2, 4, 5]
    for which, step in (("latest", 5), ("best", 2), (4, 4)):
      assert checkpoints.restore(template(), which)[1].step == step
  # A later process knows which was best.
  save_all(tmp_path, {6: 4.0, 7: 4.0})
  assert steps_in(tmp_path) == [2, 6, 7]
  save_all(tmp_path, {8: 0.5, 9: 4.0, 10: 4.0})
  assert steps_in(tmp_path) == [8, 9, 10]


def test_missing_checkpoints_are_explained(tmp_path):
  with Checkpoints(tmp_path / "new", keep=1, writable=True) as checkpoints:
    assert checkpoints.steps() == []
    with pytest.raises(RunError, match=r"/new\b"):
      checkpoints.restore(template())
  save_all(tmp_path, {3: None})
  with open_to_read(tmp_path) as checkpoints:
    with pytest.raises(RunError, match=r"step 4\b.*\[3\]"):
      checkpoints.restore(template(), 4)
    with pytest.raises(RunError, match=re.escape(str(tmp_path))):
      checkpoints.restore(template(), "best")


def flip_a_bit(folder: pathlib.Path) -> None:
  files = (file for file in folder.rglob("*") if file.is_file())
  file = max(files, key=lambda file: file.stat().st_size)
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(bytes(content))


def change_the_progress(folder: pathlib.Path, old='"count": 1', new='"count": 2') -> None:
  file = folder / "progress" / "metadata"
  file.write_text(file.read_text().replace(old, new))


DAMAGES = {
  "truncated state": lambda folder: truncate(folder / "state"),
  "flipped bit": flip_a_bit,
  "empty progress": lambda folder: (folder / "progress" / "metadata").write_bytes(b""),
  "changed progress": change_the_progress,
  "no types": lambda folder: shutil.rmtree(folder / "state" / "array_metadatas"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path, damage):
  directory = tmp_path / "checkpoints"
  save_all(directory, {1: 3.0, 2: 2.0, 3: 1.0}, keep=3)
  damage(directory / "3")
  messages: list[str] = []
  with open_to_read(directory, messages) as checkpoints:
    for which in ("latest", "best"):
      state, restored = checkpoints.restore(template(), which)
      assert_is_state_of(state, 2)
      assert restored == progress(2, 2.0)
    with pytest.raises(RunError, match=r"checkpoints\b.*step 3: "):
      checkpoints.restore(template(), 3)
  assert any(re.search(r"step 3\b.*step 2\b", message) for message in messages)
  # When none can be read, nothing is lost.
  for step in "12":
    truncate(directory / step / "state")
  with (
    Checkpoints(directory, keep=2, writable=True) as checkpoints,
    pytest.raises(RunError, match=r"step 3: .*step 2: .*step 1: "),
  ):
    checkpoints.restore(template())
  assert all((directory / step).is_dir() for step in "123")


def test_held_out_loss_that_is_damaged_ranks_no_checkpoint(tmp_path):
  """The message comes although the checkpoint that is then the best is undamaged."""
  save_all(tmp_path, {1: 3.0, 2: 2.0, 3: 2.5}, keep=3)
  change_the_progress(tmp_path / "2", '"selection_loss": 2.0', '"selection_loss": 6.0')
  messages: list[str] = []
  with open_to_read(tmp_path, messages) as checkpoints:
    assert checkpoints.restore(template(), "best")[1].step == 3
  (message,) = messages
  assert "step 2" in message


def test_files_in_place_of_folders_are_named(tmp_path):
  file = tmp_path / "checkpoints"
  file.write_text("")
  for writable in (False, True):
    with pytest.raises(RunError, match=re.escape(str(file))):
      Checkpoints(file, keep=1, writable=writable)
  save_all(tmp_path / "run", {1: None, 2: None})
  shutil.rmtree(tmp_path / "run" / "2")
  (tmp_path / "run" / "2").write_text("")
  messages: list[str] = []
  with open_to_read(tmp_path / "run", messages) as checkpoints:
    assert checkpoints.restore(template())[1].step == 1
  (message,) = messages
  assert str(tmp_path / "run" / "2") in message
  (tmp_path / "unreadable_checkpoints").write_text("")
  save_all(tmp_path / "run", {3: None}, keep=3)
  truncate(tmp_path / "run" / "3" / "state")
  with Checkpoints(tmp_path / "run", keep=3, writable=True) as checkpoints:
    _, restored = checkpoints.restore(template())
    with pytest.raises(RunError, match="unreadable_checkpoints"):
      checkpoints.set_aside_after(restored.step)


def test_reads_that_end_after_a_failed_one_print_no_traceback(tmp_path, monkeypatch):
  """Python tells of them by `sys.unraisablehook`, as of an error in `__del__`."""
  save_all(tmp_path, {1: None, 2: None})
  (tmp_path / "2" / "state" / "_METADATA").write_text("{")
  unraisable_errors = []
  monkeypatch.setattr(
    sys, "unraisablehook", lambda unraisable: unraisable_errors.append(unraisable.exc_value)
  )
  with open_to_read(tmp_path) as checkpoints:
    assert checkpoints.restore(template())[1].step == 1

  class Late:
    def __init__(self, call):
      self.call = call

    def __del__(self):
      self.call()

  loop = asyncio.new_event_loop()
  loop.close()
  Late(lambda: loop.call_soon_threadsafe(print))
  assert not unraisable_errors
  Late(lambda: 1 / 0)
  assert [type(error) for error in unraisable_errors] == [ZeroDivisionError]
