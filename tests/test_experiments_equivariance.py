"""experiments/equivariance.py and its figure, on systems of known equivariance."""

import json

import numpy as np
import pytest

from experiments import equivariance as command
from experiments import one_run
from scae_jax.data.dataset import Dataset, Split
from scae_jax.evaluation import equivariance
from scae_jax.figures import FIGURES
from scae_jax.training.build import Run
from tests.test_evaluation_equivariance import (
  CANVAS,
  NUM_IMAGES,
  all_kinds,
  images,
  results,
  system,
)
from tests.toy_system import toy_config

__all__ = ["images", "results"]  # fixtures


def test_the_figure_draws_what_was_measured(results):
  curves = command.curves(results)
  between = {kind: one["presence_between_examples"] for kind, one in results["present"].items()}
  figure = FIGURES["equivariance"](curves, between, "Toy")
  assert [axes.get_title() for axes in figure.axes[:3]] == list(equivariance.SIZES)
  units = {"translation": "pixels", "rotation": "degrees", "scaling": "factor"}
  for column, family in enumerate(equivariance.SIZES):
    errors, ratios, presences = figure.axes[column::3]
    sizes = np.array(equivariance.SIZES[family])
    assert presences.get_xlabel() == units[family]
    for axes in (errors, ratios, presences):
      assert axes.get_ylim()[0] == 0
    for i, kind in enumerate(between):
      error, unmoved, change = (
        np.array([entry[kind][name] for entry in results[family]], float)
        for name in ("pose_error", "pose_unmoved", "presence_change")
      )
      measured, still = errors.lines[2 * i : 2 * i + 2]
      np.testing.assert_array_equal(measured.get_xydata(), np.column_stack([sizes, error]))
      np.testing.assert_array_equal(still.get_xydata(), np.column_stack([sizes, unmoved]))
      assert (measured.get_label(), measured.get_linestyle()) == (kind, "-")
      assert (still.get_label(), still.get_linestyle()) == (f"{kind} that do not move", "--")
      moves = unmoved > 0  # no ratio where nothing moves, nor where no capsule is present
      expected = np.column_stack([sizes[moves], error[moves] / unmoved[moves]])
      np.testing.assert_array_equal(ratios.lines[i].get_xydata(), expected)
      assert len(expected) == (0 if kind == "absent" else len(sizes) - 1)
      curve, level = presences.lines[2 * i : 2 * i + 2]
      np.testing.assert_array_equal(curve.get_xydata(), np.column_stack([sizes, change]))
      np.testing.assert_array_equal(level.get_ydata(), between[kind])
      assert (level.get_label(), level.get_linestyle()) == (f"{kind}, between examples", ":")
    np.testing.assert_array_equal(ratios.lines[-1].get_ydata(), 1)
  ends = ("", " that do not move", ", between examples")
  named = [text.get_text() for text in figure.legends[0].get_texts()]
  assert sorted(named) == sorted(f"{kind}{end}" for kind in between for end in ends)
  with pytest.raises(ValueError, match="at least one family"):
    FIGURES["equivariance"]({}, between)


@pytest.mark.parametrize(("sizes", "are_whole"), [((0, 1), True), ((0.5, 1.5), False)])
def test_ticks_are_whole_where_sizes_are(sizes, are_whole):
  values = dict.fromkeys(("a/error", "a/unmoved", "a/presence_change"), np.zeros(2))
  figure = FIGURES["equivariance"]({"translation": {"size": np.array(sizes), **values}}, {"a": 0.5})
  ticks = figure.axes[2].get_xticks()
  assert np.array_equal(ticks, np.round(ticks)) == are_whole


@pytest.fixture
def opened(monkeypatch, images):
  """The command finds a run of seeds 0 and 1 whose system knows all kinds."""
  config = toy_config(data__canvas=CANVAS)
  split = Split(images, np.zeros(NUM_IMAGES, np.int32))
  dataset = Dataset("blobs", ("a",), {"train": split, "test": split})
  monkeypatch.setattr(equivariance, "SIZES", {"translation": (2,), "rotation": (170,)})
  monkeypatch.setattr(command, "SIZES", equivariance.SIZES)
  monkeypatch.setattr(one_run, "load_config", lambda workdir: config)
  monkeypatch.setattr(one_run, "keep_compiled", lambda folder: None)

  def open_with(poses, seeds=(0,)):
    variables = {seed: {} for seed in seeds}
    made = Run(config, system(poses), dataset, variables, 7, is_latest=True)
    monkeypatch.setattr(one_run, "open_run", lambda *arguments: made)

  return open_with


def main(monkeypatch, *arguments):
  monkeypatch.setattr("sys.argv", ["equivariance", *map(str, arguments)])
  command.main()


ENDS = ("json", "md", "png")


def test_the_command_writes_numbers_and_a_figure(opened, monkeypatch, tmp_path, capsys):
  opened(all_kinds, seeds=(0, 1))
  main(monkeypatch, tmp_path / "run", tmp_path / "out", "--max_examples=6")
  names = [f"equivariance-run-seed-{seed}.{end}" for seed in (0, 1) for end in ENDS]
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
  written = json.loads((tmp_path / "out" / names[0]).read_text())
  assert (written["step"], written["seed"]) == (7, 0)
  assert written["scored_on"] == {"dataset": "blobs", "split": "test", "examples": 6}
  assert written["translation"][0]["fixed"]["pose_unmoved"] == pytest.approx(2)
  assert written["translation"][0]["absent"]["pose_error"] is None
  assert {"date", "versions", "hardware"} <= set(written)
  assert written["command"].startswith("python -m experiments.equivariance ")
  printed = capsys.readouterr().out
  kept = [(tmp_path / "out" / name).read_text() for name in names if name.endswith(".md")]
  assert printed == "".join(f"{one}\n" for one in kept)
  assert "| translation 2 | 6 | - | - | - | 0.000 |" in printed  # absent stands first
  assert "| 2.00 | 2.00 | 1.00 | 0.000 |" in printed  # fixed


def test_a_system_without_poses_is_refused(opened, monkeypatch, tmp_path, capsys):
  opened(None)
  with pytest.raises(SystemExit) as stopped:
    main(monkeypatch, tmp_path / "run", tmp_path / "out", "--max_examples=6")
  assert stopped.value.code == 2
  assert "this system has none" in capsys.readouterr().err
