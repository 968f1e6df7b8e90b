"""The weighted total and what becomes of it: windows, `metrics.jsonl`, TensorBoard, the display."""

import dataclasses
import errno
import functools
import io
import json
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scae_jax.config import read_settings
from scae_jax.errors import NonFiniteError, RunError
from scae_jax.models.system import ImageSpec
from scae_jax.training.build import check_system, make_system
from scae_jax.training.log import Display, MetricsWriter, Window, import_tensorboard
from scae_jax.training.step import check_finite, scheduled_weights
from tests import tiny
from tests.toy_system import toy_config, toy_data


def toy_system(**changes):
  settings = read_settings(toy_config())
  system = make_system(settings, ImageSpec(canvas=4, channels=1, num_classes=2))
  return dataclasses.replace(system, **changes)


def test_a_window_keeps_its_steps_and_their_duration():
  window = Window()
  window.add({"total": np.array([1.0, 2.0])}, 1.5)
  resumed = Window(json.loads(json.dumps(window.to_json())))
  resumed.add({"total": np.array([6.0])}, 0.5)
  assert (resumed.count, resumed.seconds, resumed.means()) == (3, 2.0, {"total": 3.0})


def test_scheduled_weight_is_a_line_between_points():
  schedule = {"image": ((10, 0.5), (20, 2.0), (40, 0.0)), "between": ()}
  system = toy_system(loss_schedule=schedule)
  weights = jax.jit(jax.vmap(functools.partial(scheduled_weights, system)))
  values = weights(jnp.array([0, 10, 15, 20, 30, 99]))
  np.testing.assert_allclose(values["image"], [0.5, 0.5, 1.25, 2.0, 1.0, 0.0], rtol=1e-6)
  assert (values["between"] == 0.5).all()


POINTS = r"config\.loss\.schedule\.image "


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"loss_schedule": {"images": ((0, 1.0),)}}, r"\['images'\].*\['betw"),
    ({"loss_schedule": {"image": (0, 1.0)}}, POINTS + r".*\(0, 1\.0\)"),
    ({"loss_schedule": {"image": ((0, -1.0),)}}, POINTS + r".*\(\(0\.0, -1\.0\),\)"),
    ({"loss_schedule": {"image": ((5, 1.0), (5, 2.0))}}, POINTS),
    *(
      ({"loss_weights": {"image": weight}}, r"config\.loss\.weights\.image ")
      for weight in (-1.0, math.nan, math.inf, (1.0, 2.0), "1")
    ),
  ],
)
def test_invalid_weights_and_schedules_are_refused(changes, message):
  """Also where a system does not check its own: a term of negative weight would be maximised."""
  with pytest.raises(ValueError, match=message):
    check_system(toy_system(**changes), toy_data(side=4), 2)


def test_first_step_with_a_nonfinite_number_is_named():
  rows = {"terms/image": np.ones(4), "terms/code": np.ones(4), "grad_norm": np.ones(4)}
  check_finite(rows, 100, [0], saved=96)
  rows["grad_norm"] = np.array([1.0, 1.0, np.inf, np.nan])
  rows["terms/code"] = np.array([1.0, 1.0, 1.0, np.nan])
  message = r"step 103\b.*grad_norm = inf\b.*step 96\b"
  with pytest.raises(NonFiniteError, match=message) as info:
    check_finite(rows, 100, [0], saved=96)
  assert info.value.exit_code == 1
  rows["terms/code"][1] = np.nan
  with pytest.raises(NonFiniteError, match=r"step 102\b.*code = nan\b"):
    check_finite(rows, 100, [0], saved=96)
  of_seeds = {name: np.stack([np.ones(4), values], axis=1) for name, values in rows.items()}
  with pytest.raises(NonFiniteError, match=r"step 102\b.*code = nan \(seed 6\)"):
    check_finite(of_seeds, 100, [5, 6], saved=0)


@pytest.mark.parametrize(
  ("changes", "length"),
  [
    ({}, 100),
    ({"log_every": 30}, 10),
    ({"num_steps": 20}, 20),
    ({"num_steps": 30}, 25),
    ({"eval_every": 7}, 1),
    ({"eval_every": 0, "checkpoint_every": 0}, 100),
    ({"steps_per_dispatch": 1000}, 100),
  ],
)
def test_dispatch_length_divides_every_cadence(changes, length):
  options = {"num_steps": 5000, "steps_per_dispatch": 100, "log_every": 100, "eval_every": 500}
  options |= {"checkpoint_every": 1000, **changes}
  train = toy_config().train.to_dict() | options
  settings = read_settings(toy_config(**{f"train__{key}": train[key] for key in train}))
  assert settings.train.dispatch_length == length
  assert dataclasses.replace(settings.train, log_every=length).dispatch_length == length


def line(step: int, split: str = "train") -> dict:
  return {
    "split": split,
    "step": step,
    "terms": {"image": 0.1 * step},
    "total": 0.3,
    "metrics": {"right": 0.5},
    "timing": {"steps_per_second": 2.0, "seconds": 1.0},
  }


def read(path) -> list[dict]:
  return [json.loads(text) for text in path.read_text().splitlines()]


def open_writer(path, after_step, **options) -> MetricsWriter:
  display = Display(num_steps=40, file=io.StringIO())
  return MetricsWriter(path.parent, display, after_step=after_step, **options)


def write_lines(path, steps, after_step=0) -> None:
  with open_writer(path, after_step) as writer:
    for step in steps:
      writer.write(line(step))


def test_lines_after_the_restored_step_are_dropped(tmp_path):
  path = tmp_path / "metrics.jsonl"
  write_lines(path, [10, 20, 30])
  whole = path.read_text()
  path.write_text(whole + '{"split": "train", "step": 40, "te')  # a kill in the middle of a line
  with open_writer(path, after_step=20) as writer:
    assert read(path) == [line(10), line(20)]
    writer.write(line(30))
  assert path.read_text() == whole
  path.write_text(whole[:-1])  # in the middle of the line's end
  write_lines(path, [], after_step=30)
  assert read(path) == [line(10), line(20)]
  write_lines(path, [])  # a run without a checkpoint begins anew
  assert read(path) == []


@pytest.mark.parametrize(
  "text",
  [b"{broken", b"[1]", b'{"split": "train"}', b"\xff\xfe", b"[" * 100_000, b'{"step": true}'],
  ids=lambda text: repr(text[:20]),
)
def test_broken_lines_of_metrics_are_named(tmp_path, text):
  path = tmp_path / "metrics.jsonl"
  first, third = (json.dumps(line(step)).encode() for step in (10, 20))
  path.write_bytes(b"\n".join([first, text, third, b""]))
  with pytest.raises(RunError, match=r"metrics\.jsonl line 2\b"):
    open_writer(path, after_step=20)
  path.unlink()
  path.mkdir()
  with pytest.raises(RunError, match=r"metrics\.jsonl"):
    open_writer(path, after_step=20)


def test_tensorboard_gets_every_number(tmp_path):
  pytest.importorskip("tensorboardX", reason="an optional extra")
  with open_writer(tmp_path / "metrics.jsonl", after_step=0, tensorboard=True) as writer:
    writer.write(line(10))
  assert read(tmp_path / "metrics.jsonl") == [line(10)]
  (file,) = (tmp_path / "tensorboard").iterdir()
  content = file.read_bytes()
  for name in (b"train/terms/image", b"train/total", b"train/timing/steps_per_second"):
    assert name in content
  assert b"train/step" not in content


def test_missing_tensorboard_says_how_to_install_it(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorboardX", None)
  with pytest.raises(RunError, match=r"requirements-tensorboard\.txt"):
    import_tensorboard()


def test_display_prints_plain_lines_without_a_terminal():
  file = io.StringIO()
  with Display(num_steps=40, file=file) as display:
    display.advance(10, 2.0)
    display.line(line(10))
    display.line(line(10, "test"))
    display.line(line(10, "validation"))
    display.say("[bold]as it is[/bold]")
  train_line, test_line, validation_line, plain_line = file.getvalue().splitlines()
  assert re.search(r"10/40 +train +total 0\.3 +image 1 .*\b2\b.*0:00:15", train_line)
  assert re.search(r"10/40 +test +total 0\.3 +image 1 +right 0\.5", test_line)
  assert re.search(r"10/40 +validation +total 0\.3 +image 1 +right 0\.5", validation_line)
  assert plain_line == "[bold]as it is[/bold]"  # no markup


class Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True

  def last_frame(self) -> list[str]:
    """The lines below what is printed for good, without colours."""
    frame = self.getvalue().split("\x1b[2K")[-1]  # the codes that erase the frame before
    return [text.rstrip() for text in re.sub(r"\x1b\[[?\d;]*\w", "", frame).splitlines()]


VALUES = (156.2, -2410.0, 12.34, 0.01234, 1.234e-05, 2.303, 0.5, 2.3, 2.3)
SCAE_TERMS = dict(zip(tiny.TERMS, VALUES, strict=True))


@pytest.mark.parametrize(("columns", "num_lines"), [(80, 4), (120, 2)])
def test_progress_fits_the_width_of_the_terminal(monkeypatch, columns, num_lines):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.setenv("COLUMNS", str(columns))
  file = Terminal()
  with Display(num_steps=300_000, file=file) as display:
    display.line(line(22_000) | {"total": 156.25, "terms": SCAE_TERMS})
    display.line(line(22_000, "test"))
    display.advance(22_000, 2.345)
  assert re.search("22000/300000 +test", file.getvalue())
  assert not re.search("22000/300000 +train", file.getvalue())  # the bar has it
  bar, *losses = file.last_frame()
  assert re.search(r"22000/300000 .*\b2\.345 .*\b1 day, 8:55:50\b", bar)
  assert len(bar) <= columns
  assert max(map(len, losses)) <= columns
  assert len(losses) == num_lines
  numbers = [number for text in losses for number in re.split(r"\s{2,}", text)]
  assert numbers == ["total 156.2", *(f"{name} {value:.4g}" for name, value in SCAE_TERMS.items())]


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "Input/output error")])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_closed_output_does_not_stop_the_run(error, is_terminal):
  """A pipe whose other end has ended, and a terminal that was closed."""

  class Unread(io.StringIO):
    def write(self, text):
      raise error

    def isatty(self):
      return is_terminal

  with Display(num_steps=40, file=Unread()) as display:
    display.say("compiled")
    display.advance(20, 5.0)
