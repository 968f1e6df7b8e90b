"""The viewpoint report: what is trained, what is scored, and what is written of it."""

import functools
import json
import sys

import jax
import numpy as np
import pytest

from experiments import many_runs, viewpoint
from experiments.viewpoint_systems import ANGLES, SHARED, SYSTEMS, TRAINED_ROTATION
from scae_jax.data.dataset import EvalDataset, Split
from scae_jax.data.digits import load_digits
from scae_jax.data.transfer import load_scored
from scae_jax.evaluation import report
from scae_jax.evaluation import viewpoint as evaluation
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.collect import feature_collector
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import fit_clusters, fit_probe
from scae_jax.evaluation.viewpoint import accuracies
from scae_jax.figures import FIGURES
from scae_jax.models.system import ImageSpec
from scae_jax.training import sweep
from scae_jax.training.config import parse_command_line, read_settings
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from scae_jax.training.systems import make_system
from tests import toy_classifier, toy_system
from tests.toy_system import CONFIG_FILE

SIZES = {"canvas": 18, "batch_size": 32}
CHOSEN = 150


@pytest.fixture(scope="module")
def scored():
  return [load_digits(), load_scored("rotated_digits:35", 18)]


def make(module):
  """A system, and parameters of two seeds."""
  sections = toy_system.toy_config().to_dict()
  system = module.make_system(sections["model"], sections["loss"], toy_system.toy_data(18))
  batch = toy_system.toy_data(18).blank_batch(1)

  def start(seed):
    return jax.jit(lambda key: system.module.init(key, batch, train=False))(jax.random.key(seed))

  return system, {seed: start(seed) for seed in (0, 1)}


def test_a_classifier_is_scored_by_its_answers(scored):
  system, variables = make(toy_classifier)
  found = accuracies(system, variables, scored[0], scored, **SIZES, max_examples=CHOSEN)
  assert set(found) == {"accuracy"}
  assert list(found["accuracy"]) == ["digits", "rotated_digits:35"]
  for one in scored:
    split = load_split(one, "test", CHOSEN)
    margin = (18 - split["image"].shape[1]) // 2  # those that were turned fill the canvas
    sides = (margin, margin)
    image = np.pad(split["image"], ((0, 0), sides, sides, (0, 0))) / np.float32(255)
    for seed, own in variables.items():
      output = system.module.apply(own, {"image": image}, train=False)
      expected = np.mean(
        classify(np.asarray(system.classify(output)), split["label"][:, None]).is_right
      )
      assert found["accuracy"][one.name][seed] == pytest.approx(expected, abs=1e-6)


def test_others_are_scored_by_clusters_of_the_unmoved_training_images(scored, monkeypatch):
  """Fitted once a seed, with what clusters and probes that are fitted for each set would give."""
  fits = []
  for name in ("fit_clusters", "fit_probe"):
    real = getattr(evaluation, name)
    monkeypatch.setattr(
      evaluation, name, lambda *args, f=name, r=real, **kw: fits.append(f) or r(*args, **kw)
    )
  system, variables = make(toy_system)
  found = accuracies(system, variables, scored[0], scored, **SIZES, max_examples=CHOSEN)
  assert fits == ["fit_clusters", "fit_probe"] * 2
  assert set(found) == {"LIN-MATCH, code", "LIN-PRED, code"}
  train = load_split(scored[0], "train", CHOSEN)
  collect = feature_collector(system, **SIZES)
  fitted = collect(variables[1], train)["features"]["code"]
  for one in scored:
    test = load_split(one, "test", CHOSEN)
    moved = collect(variables[1], test)["features"]["code"]
    scored_on = (moved, test["label"])
    expected = fit_clusters(fitted, train["label"], num_classes=10, seed=1).accuracy(*scored_on)
    assert found["LIN-MATCH, code"][one.name][1] == expected
    expected = fit_probe(fitted, train["label"], num_classes=10).accuracy(*scored_on)
    assert found["LIN-PRED, code"][one.name][1] == expected


def test_every_system_is_trained_upright_and_turned():
  rows = viewpoint.make_rows("digits", 2, {"train.num_steps": 7})
  assert [row.name for row in rows] == [
    f"{name}-{way}" for name in SYSTEMS["digits"] for way in ("upright", "turned")
  ]
  for row in rows:
    turned = row.name.endswith("turned")
    assert row.config.data.max_rotation == (TRAINED_ROTATION if turned else 0.0)
    assert (row.config.data.name, row.config.train.seeds) == ("digits", 2)
    assert row.config.train.num_steps == 7


@pytest.mark.parametrize("data", SYSTEMS)
def test_all_systems_of_a_data_set_see_the_same_images(data):
  for row in viewpoint.make_rows(data, 1, {}):
    expected = SHARED[data] | {"data.num_validation": 0, "data.crop": 0}
    for key, value in expected.items():
      assert row.config.data[key.removeprefix("data.")] == value


# SCAE's are those of its configs, see test_configs.py: its canvas changes no layer.
PARAMETERS = {
  "digits": {
    "lenet5": 21_386,
    "cnn": 302_979,
    "capsnet": 629_200,
    "matrix_capsules": 30_660,
  },
  "mnist": {
    "lenet5": 107_786,
    "cnn": 69_704_466,
    "capsnet": 13_475_648,
    "matrix_capsules": 68_308,
  },
  "mnist_small": {
    "lenet5": 44_426,
    "cnn": 554_883,
    "capsnet": 1_280_720,
    "matrix_capsules": 31_684,
  },
}


@pytest.mark.parametrize("data", SYSTEMS)
def test_every_system_fits_its_images_and_has_the_parameters_that_are_stated(data):
  assert set(PARAMETERS[data]) == set(SYSTEMS[data]) - {"scae"}
  found = {}
  for row in viewpoint.make_rows(data, 1, {}, list(PARAMETERS[data])):
    name, _, way = row.name.rpartition("-")
    if way == "upright":
      spec = ImageSpec(row.config.data.canvas, channels=1, num_classes=10)
      module = make_system(read_settings(row.config), spec).module
      keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
      batch = spec.blank_batch(2)
      shapes = jax.eval_shape(functools.partial(module.init, train=True), keys, batch)
      found[name] = sum(leaf.size for leaf in jax.tree.leaves(shapes))
  assert found == PARAMETERS[data]


def test_some_systems_alone_are_trained():
  rows = viewpoint.make_rows("mnist_small", 1, {}, ["capsnet", "lenet5"])
  ways = ("upright", "turned")
  assert [row.name for row in rows] == [f"{s}-{way}" for s in ("lenet5", "capsnet") for way in ways]
  with pytest.raises(ValueError, match=r"no systems scae in the set 'mnist_small'; .*lenet5, cnn"):
    viewpoint.make_rows("mnist_small", 1, {}, ["cnn", "scae"])


@pytest.mark.parametrize(
  ("data", "canvas", "expected"),
  [("mnist", 40, "affnist"), ("mnist_small", 28, "affine_mnist"), ("digits", 20, "affine_digits")],
)
def test_affnist_is_scored_where_its_images_fit(data, canvas, expected, monkeypatch):
  split = Split(np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int32))

  def load(name, *_, normalize):
    return EvalDataset(name, ("a",), {"test": split})

  monkeypatch.setattr(viewpoint, "load_scored", load)
  options = toy_system.toy_config(data__canvas=canvas).data
  *turned, last = (one.name for one in viewpoint.scored_sets(data, options, []))
  assert last == expected
  assert turned[:2] == [f"rotated_{SHARED[data]['data.name']}:{angle}" for angle in (0, 5)]


def test_scored_are_every_angle_and_the_affine_set_with_their_notes():
  notes = []
  options = toy_system.toy_config(data__canvas=20).data
  sets = list(viewpoint.scored_sets("digits", options, notes))
  names = [one.name for one in sets]
  assert names == [*(f"rotated_digits:{angle}" for angle in ANGLES), "affine_digits"]
  assert {0, 15, 35, 180} <= set(ANGLES)
  assert notes == [note for one in sets for note in one.notes]
  assert any(note.startswith("affine_digits: affNIST's distribution") for note in notes)
  assert sets[0].splits["test"].mean is None
  options = toy_system.toy_config(data__canvas=20, data__normalize=True).data
  assert next(viewpoint.scored_sets("digits", options, [])).splits["test"].mean is not None


RESULTS = {
  "lenet5-upright": {
    "accuracy": {
      "accuracy": {
        **{f"rotated_digits:{angle}": {0: 1 - angle / 200, 1: 1.0} for angle in ANGLES},
        "affine_digits": {0: 0.5, 1: 0.6},
      }
    },
    "parameters": 44_426,
    "seconds_an_epoch": 1.234,
  }
}


def test_table_has_means_over_seeds():
  lines = viewpoint.table("digits", RESULTS).splitlines()
  assert lines[0].startswith("| system | trained | scored by | upright | turned by 15 |")
  assert lines[2:] == [
    "| lenet5 | upright | accuracy | 100.0 | 96.2 | 91.2 | 55.0 | 44,426 | 1.23 |"
  ]


def test_remarks_say_what_was_trained_and_scored_once_each():
  notes = {"a": {"notes": ["affine: drawn.", "cut: 3."]}, "b": {"notes": ["affine: drawn."]}}
  text = "\n".join(viewpoint.remarks(notes, 2))
  assert text.count("affine: drawn.") == text.count("cut: 3.") == 1
  assert "mean over 2 seed(s)" in text
  assert f"up to {TRAINED_ROTATION:g} degrees" in text


def test_curves_are_means_by_angle():
  found = viewpoint.curves("digits", RESULTS)
  assert list(found) == ["trained upright"]
  expected = [1 - angle / 400 for angle in ANGLES]
  np.testing.assert_allclose(found["trained upright"]["LeNet-5"], expected)


def test_drawn_are_names_that_one_reads_and_what_is_fitted_is_dashed():
  by_set = {f"rotated_digits:{angle}": {0: 0.5} for angle in ANGLES}
  kinds = {"LIN-MATCH, prior": by_set, "LIN-PRED, prior": by_set}
  of_others = {name: {"accuracy": {"accuracy": by_set}} for name in viewpoint.NAMES}
  results = {f"{name}-upright": of_others[name] for name in SYSTEMS["digits"]}
  results["scae-upright"] = {"accuracy": kinds}
  figure = viewpoint.draw("digits", results)
  (axes,) = figure.axes
  assert [text.get_text() for text in figure.legends[0].texts] == [
    "LeNet-5",
    "CNN",
    "CapsNet",
    "matrix capsules",
    "SCAE, LIN-MATCH, prior",
    "SCAE, LIN-PRED, prior",
  ]
  assert [line.get_linestyle() for line in axes.lines[:6]] == ["-"] * 4 + ["--"] * 2
  np.testing.assert_array_equal([line.get_xdata() for line in axes.lines[7:]], [[15] * 2, [35] * 2])
  low, high = axes.get_xlim()
  ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
  np.testing.assert_array_equal(ticks, [0, 45, 90, 135, 180])


def test_figure_has_a_panel_a_way_and_a_line_a_system():
  angles = np.array([0, 90])
  accuracy = {
    "upright": {"a": np.array([0.9, 0.2]), "b": np.array([0.8, 0.1])},
    "turned": {"b": np.array([0.7, 0.6])},
  }
  figure = FIGURES["viewpoint"](angles, accuracy, 0.1, "title")
  left, right = figure.axes
  assert (left.get_title(), right.get_title()) == ("upright", "turned")
  first, second, chance = left.lines
  np.testing.assert_allclose(first.get_ydata(), [90, 20])
  np.testing.assert_allclose(chance.get_ydata(), 10)
  assert second.get_color() == pytest.approx(right.lines[0].get_color())
  with pytest.raises(ValueError, match="at least one system"):
    FIGURES["viewpoint"](angles, {"upright": {}}, 0.1)
  with pytest.raises(TypeError, match="accuracy"):
    FIGURES["viewpoint"](angles, {"upright": {"a": np.zeros(3)}}, 0.1)


def test_figure_has_rows_of_panels_and_baselines_without_colour():
  angles = np.array([0, 90])
  accuracy = {
    "one": {"pixels": np.array([0.7, 0.6]), "a": np.array([0.9, np.nan])},
    "two": {"b": np.array([0.5, 0.4])},
    "three": {"a": np.array([0.3, 0.2])},
  }
  figure = FIGURES["viewpoint"](
    angles, accuracy, 0.1, across="range", num_columns=2, baselines=("pixels",)
  )
  one, two, three, empty = figure.axes
  assert [axes.get_xlabel() for axes in (one, two, three)] == ["range"] * 3
  assert (empty.get_visible(), three.get_visible()) == (False, True)
  assert one.get_position().y0 == two.get_position().y0 > three.get_position().y0
  pixels, a, _ = one.lines
  assert (pixels.get_color(), pixels.get_linestyle(), a.get_linestyle()) == ("0.5", "--", "-")
  assert a.get_color() == pytest.approx(three.lines[0].get_color())
  assert list(a.get_color()) != list(two.lines[0].get_color())
  assert [text.get_text() for text in figure.legends[0].texts] == ["a", "b", "pixels"]
  assert one.get_xticks().tolist() == [0, 90]


def test_seconds_a_step_is_the_median(tmp_path):
  lines = [
    {"split": "train", "step": step, "timing": {"steps_per_second": speed}}
    for step, speed in enumerate((100.0, 50.0, 10.0), start=1)
  ]
  lines.append({"split": "test", "step": 3})
  (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
  assert viewpoint.seconds_a_step(tmp_path) == pytest.approx(1 / 50)


def test_one_command_trains_scores_and_writes(tmp_path, monkeypatch, capsys):
  """The toy in this process, on rotated images; the second time nothing is trained."""
  monkeypatch.setenv("SCAE_JAX_CACHE", str(tmp_path / "cache"))
  (tmp_path / "toy.py").write_text(CONFIG_FILE)
  monkeypatch.setattr(viewpoint, "SYSTEMS", {"digits": {"toy": (str(tmp_path / "toy.py"), {})}})
  monkeypatch.setattr(viewpoint, "NAMES", {"toy": "Toy"})
  monkeypatch.setattr(viewpoint, "WAYS", {"turned": TRAINED_ROTATION})
  monkeypatch.setattr(viewpoint, "ANGLES", (0, 15, 35))
  monkeypatch.setattr(many_runs, "keep_compiled", lambda folder: None)
  monkeypatch.setattr(report, "save_figures", lambda folder, drawers: None)

  def run_in_this_process(command, log):
    parsed = parse_command_line(list(command[2:]), default_config="")
    report_run(train(parsed.settings, parsed.workdir), parsed.workdir)
    return 0

  monkeypatch.setattr(sweep, "run_logged", run_in_this_process)
  arguments = ["viewpoint", "digits", str(tmp_path / "results"), "--num_steps=16"]
  arguments += [f"--workdir={tmp_path / 'runs'}", "--max_examples=50"]
  monkeypatch.setattr(sys, "argv", arguments)
  viewpoint.main()
  assert "toy-turned: scored" in capsys.readouterr().out
  written = json.loads((tmp_path / "results" / "viewpoint-digits.json").read_text())
  assert written["command"].startswith("python -m experiments.viewpoint digits ")
  text = (tmp_path / "results" / "viewpoint-digits.md").read_text()
  assert f"Command: `{written['command']}`." in text
  ((name, result),) = written["results"].items()
  seconds = viewpoint.seconds_a_step(tmp_path / "runs" / name)
  batch_size = result["config"]["train"]["batch_size"]
  assert result["seconds_an_epoch"] == pytest.approx(seconds * 1437 / batch_size)
  assert (result["steps"], result["parameters"] > 1000) == (16, True)
  assert {kind: len(by_set) for kind, by_set in result["accuracy"].items()} == {
    "LIN-MATCH, code": 4,
    "LIN-PRED, code": 4,
  }
  assert (tmp_path / "results" / "viewpoint-digits.png").stat().st_size > 10_000
  monkeypatch.setattr(viewpoint, "score_run", lambda *arguments: result)
  viewpoint.main()
  assert "toy-turned: finished before" in capsys.readouterr().out
