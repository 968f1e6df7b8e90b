"""Experiments that compare systems: what is trained, scored and tabulated. Nothing trains here."""

import argparse
import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest

from experiments import accuracies as accuracies_module
from experiments import rotation, viewpoint
from experiments.accuracies import accuracies
from experiments.rotation import ROTATED, UPRIGHT
from experiments.viewpoint import ANGLES, TRAINED_ROTATION
from scae_jax.config import read_settings
from scae_jax.data.batches import evaluation_batch
from scae_jax.data.digits import load_digits
from scae_jax.data.transfer import load_scored
from scae_jax.evaluation.classification import classify
from scae_jax.evaluation.encode import encode_dataset
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import fit_clusters, fit_encoding, fit_probe
from scae_jax.models.system import Encoding, ImageSpec
from scae_jax.training.build import make_system
from scae_jax.training.run import Run
from tests import toy_classifier, toy_system
from tests.stand_ins import texts
from tests.tiny import build, initial
from tests.toy_system import toy_config

SIZES = {"canvas": 18, "batch_size": 32}
CHOSEN = 150
SETS = [(viewpoint, data) for data in viewpoint.SYSTEMS]
SETS += [(rotation, data) for data in rotation.SYSTEMS]


def options(data, **changes):
  fields = {"seeds": 2, "num_steps": 7, "max_examples": 0, "systems": "", "ranges": (0, 180)}
  return argparse.Namespace(data=data, **fields | changes)


@pytest.mark.parametrize(("module", "data"), SETS)
def test_every_system_of_a_set_is_trained_on_the_same_images_at_every_rotation(module, data):
  systems, shared = module.SYSTEMS[data], module.SHARED[data]
  ways = {"0": 0, "180": 180} if module is rotation else {"upright": 0, "turned": TRAINED_ROTATION}
  rows = module.make_rows(options(data))
  assert [row.name for row in rows] == [f"{name}-{way}" for name in systems for way in ways]
  for row in rows:
    expected = {"name": data.removesuffix("_small"), "num_validation": 0, "crop": 0}
    expected |= {key.removeprefix("data."): value for key, value in shared.items()}
    expected["max_rotation"] = ways[row.name.rpartition("-")[2]]
    assert {key: row.config.data[key] for key in expected} == expected
    assert (row.config.train.seeds, row.config.train.num_steps) == (2, 7)


def test_systems_of_mnist_have_the_same_capsules():
  """Smith et al. 2020, appendix C: more of them would share a digit by its turn."""
  rows = rotation.make_rows(options("mnist", ranges=(0,)))
  scae, probabilistic = (row.config.model for row in rows)
  assert (scae.num_parts, scae.num_objects) == probabilistic.capsules == (24, 24)


# SCAE's are those of its configs, see test_configs.py: its canvas changes no layer.
PARAMETERS = {
  "digits": {"lenet5": 21_386, "cnn": 302_979, "capsnet": 629_200, "matrix_capsules": 30_660},
  "mnist": {"lenet5": 107_786, "cnn": 69_704_466, "capsnet": 13_475_648, "matrix_capsules": 68_308},
  "mnist_small": {
    "lenet5": 44_426,
    "cnn": 554_883,
    "capsnet": 1_280_720,
    "matrix_capsules": 31_684,
  },
}


@pytest.mark.parametrize("data", PARAMETERS)
def test_every_system_has_the_parameters_that_are_stated(data):
  assert set(PARAMETERS[data]) == set(viewpoint.SYSTEMS[data]) - {"scae"}
  counts = {}
  for row in viewpoint.make_rows(options(data, systems=",".join(PARAMETERS[data]))):
    name, _, way = row.name.rpartition("-")
    if way == "upright":
      spec = ImageSpec(row.config.data.canvas, channels=1, num_classes=10)
      shapes = build(make_system(read_settings(row.config), spec), spec.blank_batch(2))
      counts[name] = sum(leaf.size for leaf in jax.tree.leaves(shapes))
  assert counts == PARAMETERS[data]


def test_some_systems_alone_are_trained():
  rows = viewpoint.make_rows(options("mnist_small", systems="capsnet,lenet5"))
  expected = [f"{name}-{way}" for name in ("lenet5", "capsnet") for way in ("upright", "turned")]
  assert [row.name for row in rows] == expected
  with pytest.raises(ValueError, match=r"\bscae\b.*'mnist_small'.*lenet5, cnn"):
    viewpoint.make_rows(options("mnist_small", systems="cnn,scae"))


@pytest.fixture(scope="module")
def scored():
  return [load_digits(), load_scored("rotated_digits:35", toy_system.data_options(18))]


@functools.cache
def start(module):
  """A system, and initial parameters of two seeds."""
  sections = toy_config().to_dict()
  data = toy_system.toy_data(18)
  system = module.make_system(sections["model"], sections["loss"], data)
  return system, {seed: initial(system, data, seed) for seed in (0, 1)}


def test_a_classifier_is_scored_by_its_answers(scored):
  system, variables = start(toy_classifier)
  record = accuracies(system, variables, scored[0], scored, **SIZES, max_examples=CHOSEN)
  assert list(record) == ["accuracy"]
  assert list(record["accuracy"]) == ["digits", "rotated_digits:35"]
  for dataset in scored:
    split = load_split(dataset, "test", CHOSEN)
    margin = (18 - split["image"].shape[1]) // 2  # those that were turned fill the canvas
    sides = (margin, margin)
    image = np.pad(split["image"], ((0, 0), sides, sides, (0, 0))) / np.float32(255)
    for seed, of_seed in variables.items():
      output = system.module.apply(of_seed, {"image": image}, train=False)
      answers = classify(np.asarray(system.encoding(output).scores), split["label"][:, None])
      expected = np.mean(answers.is_right)
      assert record["accuracy"][dataset.name][seed] == pytest.approx(expected, abs=1e-6)


def test_others_are_scored_by_clusters_of_the_unmoved_training_images(scored, monkeypatch):
  """Fitted once a seed, with what clusters and probes that are fitted for each set would give."""
  fits = []
  monkeypatch.setattr(
    accuracies_module,
    "fit_encoding",
    lambda *args, **options: fits.append(options["seed"]) or fit_encoding(*args, **options),
  )
  system, variables = start(toy_system)

  def encoding(output):
    return Encoding(features={"code": output.code}, probe_features={"logits": output.logits})

  system = dataclasses.replace(system, encoding=encoding)
  record = accuracies(system, variables, scored[0], scored, **SIZES, max_examples=CHOSEN)
  assert fits == [0, 1]
  assert list(record) == ["LIN-MATCH, code", "LIN-PRED, code", "LIN-PRED, logits"]

  def codes(split):
    make_batch = functools.partial(evaluation_batch, canvas=SIZES["canvas"])
    encoding = encode_dataset(
      system, variables[1], split, make_batch, batch_size=SIZES["batch_size"]
    )
    return encoding.features["code"], split["label"]

  fitted = codes(load_split(scored[0], "train", CHOSEN))
  clusters = fit_clusters(*fitted, num_classes=10, seed=1)
  probe = fit_probe(*fitted, num_classes=10)
  for moved_set in scored:
    moved = codes(load_split(moved_set, "test", CHOSEN))
    assert record["LIN-MATCH, code"][moved_set.name][1] == clusters.accuracy(*moved)
    assert record["LIN-PRED, code"][moved_set.name][1] == probe.accuracy(*moved)
  test_split = scored[1].splits["test"]
  splits = {"test": test_split.take(np.arange(7)), "validation": test_split}
  held = [dataclasses.replace(scored[1], splits=splits)]
  other = accuracies(system, variables, scored[0], held, **SIZES, max_examples=CHOSEN)
  assert other == {way: {held[0].name: by_set[held[0].name]} for way, by_set in record.items()}


@pytest.mark.parametrize(
  ("data", "canvas", "expected"),
  [("mnist", 40, "affnist"), ("mnist_small", 28, "affine_mnist"), ("digits", 20, "affine_digits")],
)
def test_every_angle_is_scored_and_affnist_where_its_images_fit(
  data, canvas, expected, monkeypatch
):
  monkeypatch.setattr(viewpoint, "load_scored", lambda *arguments: arguments)
  options = toy_system.data_options(canvas)
  source = data.removesuffix("_small")
  names = [*(f"rotated_{source}:{angle}" for angle in ANGLES), expected]
  assert viewpoint.scored_sets(data, options) == [(name, options) for name in names]
  assert {0, 15, 35, 180} <= set(ANGLES)


TURNED = {
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


def ranged(rotated, upright, pixels):
  """Of a run with two seeds, as `rotation.score_run` gives it."""
  record = {
    images: {
      "LIN-MATCH, object_code": dict(enumerate(shares)),
      "LIN-PRED, object_code": {0: 1.0, 1: 0.5},
    }
    for images, shares in {ROTATED: rotated, UPRIGHT: upright}.items()
  }
  of_pixels = {ROTATED: {"LIN-MATCH": pixels}, UPRIGHT: {"LIN-MATCH": 0.7}}
  facts = {"parameters": 1234, "steps": 20, "notes": ["ink of 3 images is cut."]}
  return {"accuracy": record, "pixels": of_pixels, **facts}


RANGED = {
  "ours-0": ranged((0.8, 0.9), (0.8, 0.9), 0.7),
  "ours-90": ranged((0.5, 0.6), (0.75, 0.85), 0.4),
  "theirs-90": ranged((0.3, 0.3), (0.2, 0.2), 0.4),
}


def test_tables_and_curves_have_means_over_seeds_and_gaps():
  lines = viewpoint.table_of("digits", TURNED).splitlines()
  assert lines[0].startswith("| system | trained | scored by | upright | turned by 15 |")
  cells = "lenet5 | upright | accuracy | 100.0 | 96.2 | 91.2 | 55.0 | 44,426 | 1.23"
  assert lines[2:] == [f"| {cells} |"]
  lines = rotation.table_of(rotation.make_lines(RANGED), (0, 90)).splitlines()
  assert lines[0] == "| scored by | test images | of | up to 0 | up to 90 |"
  assert lines[2:] == [
    "| LIN-MATCH | turned within the range | ours, object code | 85.0 | 55.0 |",
    "| LIN-MATCH | turned within the range | theirs, object code |  | 30.0 |",
    "| LIN-MATCH | turned within the range | raw pixels | 70.0 | 40.0 |",
    "| LIN-MATCH | upright | ours, object code | 85.0 | 80.0 |",
    "| LIN-MATCH | upright | theirs, object code |  | 20.0 |",
    "| LIN-MATCH | upright | raw pixels | 70.0 | 70.0 |",
    "| LIN-PRED | turned within the range | ours, object code | 75.0 | 75.0 |",
    "| LIN-PRED | turned within the range | theirs, object code |  | 75.0 |",
    "| LIN-PRED | upright | ours, object code | 75.0 | 75.0 |",
    "| LIN-PRED | upright | theirs, object code |  | 75.0 |",
  ]
  (panel,) = viewpoint.curves("digits", TURNED).values()
  np.testing.assert_allclose(panel["LeNet-5"], [1 - angle / 400 for angle in ANGLES])
  record = rotation.curves(rotation.make_lines(RANGED), (0, 90))
  assert len(record) == 4
  panel = record["LIN-MATCH, test images turned within the range"]
  np.testing.assert_allclose(panel["ours, object code"], [0.85, 0.55])
  np.testing.assert_array_equal(panel["theirs, object code"], [np.nan, 0.3])
  np.testing.assert_array_equal(panel["raw pixels"], [0.7, 0.4])


def test_drawn_are_names_that_one_reads_and_what_is_fitted_is_dashed():
  by_set = {f"rotated_digits:{angle}": {0: 0.5} for angle in ANGLES}
  results = {f"{name}-upright": {"accuracy": {"accuracy": by_set}} for name in viewpoint.NAMES}
  kinds = {"LIN-MATCH, prior": by_set, "LIN-PRED, prior": by_set}
  results["scae-upright"] = {"accuracy": kinds}
  figure = viewpoint.draw("digits", results)
  (axes,) = figure.axes
  fitted = ["SCAE, LIN-MATCH, prior", "SCAE, LIN-PRED, prior"]
  names = ["LeNet-5", "CNN", "CapsNet", "matrix capsules", *fitted]
  assert texts(figure.legends[0].texts) == names
  assert [line.get_linestyle() for line in axes.lines[:6]] == ["-"] * 4 + ["--"] * 2
  np.testing.assert_array_equal([line.get_xdata() for line in axes.lines[7:]], [[15] * 2, [35] * 2])
  assert {0, 45, 90, 135, 180} <= set(axes.get_xticks())


def write_log(workdir):
  """Steps at 100, 50 and 10 a second, of which the median counts."""
  lines = [
    {"split": "train", "step": step, "timing": {"steps_per_second": speed}}
    for step, speed in enumerate((100.0, 50.0, 10.0), start=1)
  ]
  lines.append({"split": "test", "step": 3, "timing": {"steps_per_second": 1.0}})
  (workdir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def finished_run():
  """Of two seeds, with initial parameters."""
  system, variables = start(toy_system)
  settings = read_settings(toy_config(data__canvas=18))
  return Run(settings, system, load_digits(), variables, 24, is_latest=True)


def test_a_run_is_scored_at_every_angle(tmp_path, monkeypatch):
  monkeypatch.setattr(viewpoint, "ANGLES", (0, 15, 35))
  write_log(tmp_path)
  result = viewpoint.score_run(options("digits", max_examples=50), finished_run(), tmp_path)
  assert result["seconds_an_epoch"] == pytest.approx(1437 / 16 / 50)
  assert result["parameters"] == 5606
  kinds = {kind: list(by_set) for kind, by_set in result["accuracy"].items()}
  sets = [*(f"rotated_digits:{angle}" for angle in (0, 15, 35)), "affine_digits"]
  assert kinds == {"LIN-MATCH, code": sets, "LIN-PRED, code": sets}


def test_a_run_is_scored_on_images_within_its_range_and_on_upright_ones():
  pixels = {}
  still, turned = (
    rotation.score_run(
      options("digits", max_examples=50),
      finished_run(),
      pathlib.Path(f"toy-{degrees}"),
      pixels=pixels,
    )
    for degrees in (0, 90)
  )
  # Of the same parameters in both.
  of_still, of_turned = still["accuracy"], turned["accuracy"]
  assert of_still[ROTATED] == of_still[UPRIGHT] == of_turned[UPRIGHT] != of_turned[ROTATED]
  shares = 50 * np.array([[*by_seed.values()] for by_seed in of_turned[ROTATED].values()])
  np.testing.assert_allclose(shares, np.round(shares), atol=1e-9)
  of_still, of_turned = still["pixels"], turned["pixels"]
  assert of_still[UPRIGHT] == of_turned[UPRIGHT] != of_turned[ROTATED]
  assert len(pixels) == 3  # upright ones are the same for all ranges
