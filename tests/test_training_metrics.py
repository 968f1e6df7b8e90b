"""Windows of training metrics, `metrics.jsonl` across a kill, TensorBoard, and the display."""

import io
import json
import re
import sys

import numpy as np
import pytest

from scae_jax.training.errors import RunError
from scae_jax.training.metrics import MetricsWriter, Window, import_tensorboard
from scae_jax.training.progress import Display


def line(step: int, split: str = "train") -> dict:
  return {
    "split": split,
    "step": step,
    "terms": {"image": 0.1 * step},
    "total": 0.3,
    "measures": {"right": 0.5},
    "timing": {"steps_per_second": 2.0, "seconds": 1.0},
  }


def read(path) -> list[dict]:
  return [json.loads(text) for text in path.read_text().splitlines()]


def test_window_means_do_not_depend_on_how_it_was_filled():
  values = np.random.RandomState(0).rand(100).astype(np.float32) * 1e3
  rows = {"terms/image": values, "total": values[::-1]}
  whole = Window()
  whole.add(rows)
  parts = Window()
  for start in range(0, 100, 7):
    parts.add({name: array[start : start + 7] for name, array in rows.items()})
    parts = Window(json.loads(json.dumps(parts.to_json())))  # as a checkpoint stores it
  assert parts.means() == whole.means()  # Python adds the same numbers in the same order
  assert whole.means()["terms"]["image"] == pytest.approx(np.mean(values, dtype=np.float64))
  assert whole.count == 100


def open_writer(path, after_step) -> MetricsWriter:
  return MetricsWriter(path.parent, after_step=after_step, tensorboard=False)


def write_lines(path, steps) -> None:
  writer = open_writer(path, after_step=0)
  for step in steps:
    writer.write(line(step))
  writer.close()


def test_lines_after_the_restored_step_are_dropped(tmp_path):
  path = tmp_path / "metrics.jsonl"
  write_lines(path, [10, 20, 30])
  whole = path.read_text()
  path.write_text(whole + '{"split": "train", "step": 40, "te')  # a kill in the middle of a line
  writer = open_writer(path, after_step=20)
  assert read(path) == [line(10), line(20)]
  writer.write(line(30))
  writer.close()
  assert path.read_text() == whole
  write_lines(path, [])  # a run without a checkpoint begins anew
  assert read(path) == []


def test_unfinished_line_that_is_whole_json_is_not_kept_without_its_end(tmp_path):
  path = tmp_path / "metrics.jsonl"
  write_lines(path, [10, 20])
  path.write_text(path.read_text()[:-1])
  open_writer(path, after_step=20).close()
  assert read(path) == [line(10)]


def test_damage_in_the_middle_is_not_passed_over(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_text(json.dumps(line(10)) + "\n{broken\n" + json.dumps(line(20)) + "\n")
  with pytest.raises(RunError, match=r"metrics.jsonl line 2 is not JSON.*Repair or remove"):
    open_writer(path, after_step=20)


@pytest.mark.parametrize(
  "text",
  [b"[1]", b"null", b'{"split": "train"}', b"\xff\xfe", b"[" * 100_000, b'{"step": true}'],
  ids=lambda text: repr(text[:20]),
)
def test_what_is_no_line_of_metrics_is_named(tmp_path, text):
  path = tmp_path / "metrics.jsonl"
  path.write_bytes(json.dumps(line(10)).encode() + b"\n" + text + b"\n")
  with pytest.raises(RunError, match=r"metrics.jsonl line 2 is not JSON of a line of metrics"):
    open_writer(path, after_step=20)
  path.unlink()
  path.mkdir()
  with pytest.raises(RunError, match=r"metrics.jsonl cannot be read: .*Move it away"):
    open_writer(path, after_step=20)


def test_tensorboard_gets_every_number(tmp_path):
  pytest.importorskip("tensorboardX", reason="an optional extra")
  writer = MetricsWriter(tmp_path, after_step=0, tensorboard=True)
  writer.write(line(10))
  writer.close()
  assert read(tmp_path / "metrics.jsonl") == [line(10)]
  (file,) = (tmp_path / "tensorboard").iterdir()
  content = file.read_bytes()
  for name in (b"train/terms/image", b"train/total", b"train/timing/steps_per_second"):
    assert name in content
  assert b"train/step" not in content


def test_missing_tensorboard_says_how_to_install_it(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorboardX", None)
  with pytest.raises(RunError, match=r"pip install -r requirements-tensorboard.txt"):
    import_tensorboard()


def test_display_prints_plain_lines_where_there_is_no_terminal():
  file = io.StringIO()
  with Display(num_steps=40, file=file) as display:
    display.advance(10, 2.0)
    display.line(line(10))
    display.line(line(10, "test"))
    display.line(line(10, "validation"))
    display.say("[bold]as it is[/bold]")
  text = file.getvalue()
  assert text.splitlines() == [
    "step 10/40  train       total 0.3  image 1  2 steps/s  0:00:15 left",
    "step 10/40  test        total 0.3  image 1  right 0.5",
    "step 10/40  validation  total 0.3  image 1  right 0.5",
    "[bold]as it is[/bold]",
  ]
  assert "\x1b" not in text


class Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True

  def last_frame(self) -> list[str]:
    """The lines below what is printed for good, without colours."""
    frame = self.getvalue().split("\x1b[2K")[-1]  # the codes that erase the frame before
    return [text.rstrip() for text in re.sub(r"\x1b\[[?\d;]*\w", "", frame).splitlines()]


def test_display_draws_a_bar_on_a_terminal(monkeypatch):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.setenv("COLUMNS", "150")
  file = Terminal()
  with Display(num_steps=40, file=file) as display:
    display.advance(10, 2.0)
    display.line(line(10))
    display.line(line(10, "test"))
  text = file.getvalue()
  assert "10/40" in text
  assert "2 steps/s  0:00:15 left" in text
  assert "image 1" in text
  assert "step 10/40  test" in text
  assert "step 10/40  train" not in text  # the bar has it


SCAE_TERMS = {
  "image": 156.2,
  "parts": -2410.0,
  "prior_within": 12.34,
  "prior_between": 0.01234,
  "posterior_within": 1.234e-05,
  "posterior_between": 2.303,
  "dynamic": 0.5,
  "prior_probe": 2.3,
  "posterior_probe": 2.3,
}


@pytest.mark.parametrize(("columns", "num_lines"), [(80, 4), (120, 2)])
def test_losses_leave_bar_count_speed_and_time_on_the_terminal(monkeypatch, columns, num_lines):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.setenv("COLUMNS", str(columns))
  file = Terminal()
  with Display(num_steps=300_000, file=file) as display:
    display.line(line(22_000) | {"total": 156.25, "terms": SCAE_TERMS})
    display.advance(22_000, 2.345)
  bar, *losses = file.last_frame()
  assert re.fullmatch(r"training ━.{20,}━  22000/300000 2.345 steps/s  1 day, 8:55:50 left", bar)
  assert len(bar) <= columns
  assert max(map(len, losses)) <= columns
  assert len(losses) == num_lines
  numbers = [number for text in losses for number in re.split(r"\s{2,}", text)]
  assert numbers == ["total 156.2", *(f"{name} {value:.4g}" for name, value in SCAE_TERMS.items())]
