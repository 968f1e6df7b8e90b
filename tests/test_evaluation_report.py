"""The report as a whole, on a toy system whose figures are known."""

import json
import os
import pathlib
import re
import shutil
import types

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from matplotlib.figure import Figure

from scae_jax.data.dataset import Dataset, EvalDataset, Split
from scae_jax.evaluation import provenance, scores
from scae_jax.evaluation.evaluators import evaluate_features
from scae_jax.evaluation.history import read_history
from scae_jax.evaluation.report import Evaluated, write_reports
from scae_jax.evaluation.report_figures import FIGURES, embed, feature_figures
from scae_jax.files import file_name, read_json, write_json, write_whole
from scae_jax.models.system import Encoding
from tests.stand_ins import source_of, stub


class Toy(nn.Module):
  """Two capsules that are present in dark and in bright images."""

  @nn.compact
  def __call__(self, batch, *, train):
    scale = self.param("scale", nn.initializers.ones, ())
    bright = batch["image"].max(axis=(1, 2, 3)) * scale
    return jnp.stack([1 - bright, bright], axis=1)


def pictures(variables, batch):
  image = batch["image"]
  return {
    "templates": {"templates": variables["params"]["scale"] * jnp.ones((2, 3, 3, 1))},
    "object_reconstructions": {
      "image": image,
      "object_reconstruction": jnp.stack([image, 1 - image], axis=1),
      "object_presence": jnp.ones((len(image), 2)),
    },
  }


def make_system(probe_features=lambda output: {}, **changes):
  def encoding(output):
    features = {"alive": output, "dead": jnp.full_like(output, 0.5)}
    return Encoding(features=features, probe_features=probe_features(output))

  fields = {
    "metrics": lambda output, batch: {"label_plus_one": batch["label"] + 1.0},
    "encoding": encoding,
    "pictures": pictures,
  }
  return stub(Toy(), **fields | changes)


def make_dataset(name="toy", num_wrong=0, num_test=10, side=4):
  """Images of class 0 are dark, of class 1 bright, but for `num_wrong` of the test labels."""

  def split(n, wrong):
    labels = (np.arange(n) % 2).astype(np.int32)
    noise = np.random.RandomState(n).randint(0, 40, (n, side, side, 1))
    images = (noise + 200 * labels[:, None, None, None]).astype(np.uint8)
    labels[:wrong] = 1 - labels[:wrong]
    return Split(images, labels)

  splits = {"train": split(20, 0), "test": split(num_test, num_wrong)}
  return Dataset(name, ("US$_a_b_$", "bright"), splits)


VARIABLES = {"params": {"scale": jnp.float32(1.0)}}


def run(directory, dataset=None, system=None, variables=VARIABLES, **changes):
  dataset = dataset or make_dataset(num_wrong=3)
  scored = changes.pop("scored_dataset", dataset)
  split = changes.pop("split", "test")
  fields = {"step": 1200, "batch_size": 8} | changes
  evaluated = Evaluated(system or make_system(), {0: variables}, **fields)
  items = evaluate_features(evaluated, dataset, scored, split, 6)
  return write_reports(directory, evaluated, items)[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """One whole report: its directory and what `write_reports` returned of its seed."""
  directory = tmp_path_factory.mktemp("report") / "new" / "evaluation"
  history = directory.parent.parent / "metrics.jsonl"
  history.write_text('{"step": 1, "split": "train", "total": 2.0}\n')
  metrics = run(directory, provenance={"config": "toy.py"}, history=history)
  return directory, metrics


def test_metrics_and_figures_are_written(finished):
  directory, metrics = finished
  assert read_json(directory / "metrics.json") == metrics
  assert source_of(metrics["fitted_on"]) == {"dataset": "toy", "split": "train", "examples": 20}
  assert source_of(metrics["scored_on"]) == {"dataset": "toy", "split": "test", "examples": 10}
  assert (metrics["step"], metrics["seed"], metrics["max_examples"]) == (1200, 0, 0)
  assert metrics["provenance"] == {"config": "toy.py"}
  assert {"platform": "cpu", "cpu_count": os.cpu_count()}.items() <= metrics["hardware"].items()
  assert {"jax", "flax", "numpy", "scikit-learn"} <= set(metrics["versions"])
  assert metrics["versions"]["numpy"] == np.__version__
  assert metrics["date"].endswith("+00:00")
  expected = {"templates", "object_reconstructions", "training_curves"}
  for name in ("alive", "dead"):
    expected |= {f"{kind}-{name}" for kind in ("presences_by_class", "confusion", "embedding")}
  files = {path.name for path in directory.iterdir()}
  assert files == {f"{name}.png" for name in expected} | {"metrics.json", "clusters.json"}
  assert all(path.read_bytes()[:4] == b"\x89PNG" for path in directory.glob("*.png"))


def test_metrics_of_an_accelerator_say_what_jax_runs_on(monkeypatch):
  assert "platform_version" not in provenance.measured_with()["hardware"]
  client = types.SimpleNamespace(platform_version="PJRT C API\ncuda 13000")
  gpu = types.SimpleNamespace(platform="gpu", device_kind="Some GPU", client=client)
  monkeypatch.setattr(provenance.jax, "devices", lambda: [gpu])
  hardware = provenance.measured_with()["hardware"]
  assert hardware["device_kind"] == "Some GPU"
  assert hardware["platform_version"] == "PJRT C API cuda 13000"


def test_metrics_have_the_known_figures(finished):
  _, metrics = finished
  alive = metrics["features"]["alive"]
  # Three of ten test labels are wrong.
  assert alive["lin_match"] == alive["lin_pred"] == pytest.approx(0.7)
  assert alive["lin_match_train"] == alive["lin_pred_train"] == 1.0
  assert alive["confusion"] == [[3, 1], [2, 4]]
  assert (alive["capsules"], alive["capsules_in_use"]) == (2, 2)
  assert metrics["pixels"]["lin_match"] == metrics["pixels"]["lin_pred"] == pytest.approx(0.7)
  assert metrics["pixels"]["fitted_examples"] == 20
  assert "capsules" not in metrics["pixels"]
  labels = make_dataset(num_wrong=3).splits["test"].labels
  assert metrics["metrics"] == {"label_plus_one": pytest.approx(np.mean(labels) + 1)}
  assert (metrics["features"]["dead"]["clusters"], alive["clusters"]) == (1, 2)
  (note,) = metrics["notes"]
  assert re.match(r"dead: .*\b1\b.* cluster.* 2 classes", note)


@pytest.mark.usefixtures("not_drawn")
def test_readings_are_only_classified_and_may_be_negative(tmp_path, finished, capsys):
  def probe_features(output):
    return {"minus_corner": -output, "nothing": 0 * output}

  metrics = run(tmp_path, system=make_system(probe_features=probe_features))
  expected = {"lin_pred": pytest.approx(0.7), "lin_pred_train": 1.0}
  expected |= {"lin_pred_converged": True, "fitted_examples": 20}
  assert metrics["readings"]["minus_corner"] == expected
  assert set(metrics) - set(finished[1]) == {"readings"}
  assert metrics["features"] == finished[1]["features"]
  assert "| LIN-PRED, minus_corner | 70.0 |" in capsys.readouterr().out


@pytest.mark.usefixtures("not_drawn")
def test_what_makes_a_figure_less_than_it_seems_is_noted(tmp_path, monkeypatch):
  """A limit of examples, a probe that was cut, few pixels."""
  monkeypatch.setattr("scae_jax.evaluation.probes.MAX_STEPS", 1)
  monkeypatch.setattr(scores, "MAX_PIXEL_EXAMPLES", 4)
  system = make_system(probe_features=lambda output: {"minus": -output})
  metrics = run(tmp_path, system=system, max_examples=6)
  assert not metrics["readings"]["minus"]["lin_pred_converged"]
  assert any(note.startswith("minus: ") for note in metrics["notes"])
  assert metrics["fitted_on"]["examples"] == metrics["scored_on"]["examples"] == 6
  assert metrics["features"]["alive"]["fitted_examples"] == metrics["max_examples"] == 6
  assert np.sum(metrics["features"]["alive"]["confusion"]) == 6
  assert metrics["pixels"]["fitted_examples"] == 4
  assert any(re.match(r"raw pixels: .*\b4\b", note) for note in metrics["notes"])


@pytest.mark.usefixtures("not_drawn")
def test_another_split_or_data_set_is_scored_with_what_the_own_training_split_gives(tmp_path):
  other = make_dataset("other", num_wrong=7, num_test=14, side=6)
  for split, count, share in (("train", 20, 1.0), ("test", 14, 0.5)):
    metrics = run(tmp_path, scored_dataset=other, split=split)
    assert source_of(metrics["fitted_on"]) == {"dataset": "toy", "split": "train", "examples": 20}
    assert source_of(metrics["scored_on"]) == {
      "dataset": "other",
      "split": split,
      "examples": count,
    }
    assert metrics["features"]["alive"]["lin_match"] == pytest.approx(share)


@pytest.mark.usefixtures("not_drawn")
def test_what_is_not_finite_leaves_no_metrics(tmp_path):
  broken = {"params": {"scale": jnp.float32(np.nan)}}
  with pytest.raises(ValueError, match=r"'alive'.*20 of 20"):
    run(tmp_path, variables=broken)
  system = make_system(metrics=lambda output, batch: {"error": jnp.log(batch["label"] - 1.0)})
  with pytest.raises(ValueError, match=r"'error'.*10 of 10"):
    run(tmp_path, system=system)
  assert list(tmp_path.iterdir()) == []


def test_figures_that_fail_cost_no_metrics(tmp_path):
  wrong = {"templates": {"templates": jnp.zeros((2, 2))}}
  system = make_system(pictures=lambda variables, batch: wrong)
  with pytest.raises(TypeError, match="templates"):
    run(tmp_path, system=system)
  content = json.loads((tmp_path / "metrics.json").read_text())
  assert content["step"] == 1200
  assert "templates" in content["unfinished"]
  assert {path.name for path in tmp_path.iterdir()} == {"metrics.json"}
  with pytest.raises(ValueError, match=r"holiday.*templates"):
    run(tmp_path, system=make_system(pictures=lambda variables, batch: {"holiday": {}}))


class Stop(BaseException):
  """As a signal ends a program, at any moment."""


def stop_at(patch, place, name, count):
  """Stops at this call of a function, the first being 1."""
  function, calls = getattr(place, name), []

  def counted(*arguments, **options):
    calls.append(arguments)
    if len(calls) == count:
      raise Stop
    return function(*arguments, **options)

  patch.setattr(place, name, counted)


def contents(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_report_that_is_stopped_is_the_old_one_or_none(finished, tmp_path, monkeypatch):
  """Nothing changes until all is drawn; then whoever looks for `metrics.json` finds none before
  the last figure is there."""
  directory, _ = finished
  folder = tmp_path / "evaluation"
  shutil.copytree(directory, folder)
  before = contents(folder)
  for place, name, count in ((Figure, "savefig", 3), (os, "fsync", 4)):
    with monkeypatch.context() as patch:
      stop_at(patch, place, name, count)
      with pytest.raises(Stop):
        run(folder, step=1300)
    assert contents(folder) == before
  figures = {name: content for name, content in before.items() if name.endswith(".png")}
  for count in (2, len(before) + 1):  # the first is a try whether the folder can be written
    with monkeypatch.context() as patch:
      patch.setattr("scae_jax.evaluation.report.draw_figures", lambda _: figures)
      stop_at(patch, pathlib.Path, "replace", count)
      with pytest.raises(Stop):
        run(folder, step=1300)
    assert set(contents(folder)) == set(before) - {"metrics.json"}
  run(folder, step=1300)
  assert json.loads((folder / "metrics.json").read_text())["step"] == 1300


def test_a_file_has_its_name_only_once_it_is_whole(tmp_path, monkeypatch):
  path, replace = tmp_path / "metrics.json", os.replace

  def check_and_replace(source, target):
    assert not path.exists()
    assert pathlib.Path(source).read_bytes() == b'{"step": 1}'
    replace(source, target)

  monkeypatch.setattr(os, "replace", check_and_replace)
  write_whole(path, b'{"step": 1}')
  umask = os.umask(0)
  os.umask(umask)
  assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_interrupted_write_keeps_the_old_file_and_leaves_no_draft(tmp_path, monkeypatch):
  path = tmp_path / "metrics.json"
  write_json(path, {"step": 1})

  def interrupt(descriptor):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
      write_json(path, {"step": 2})
  with pytest.raises(ValueError, match="JSON"):
    write_json(path, {"loss": float("nan")})
  assert json.loads(path.read_text()) == {"step": 1}
  assert list(tmp_path.iterdir()) == [path]
  write_json(path, {"step": 3})
  assert json.loads(path.read_text()) == {"step": 3}


def test_file_names_have_no_separators():
  assert file_name("cifar10_corrupted/fog_1:1.0.0-test") == "cifar10_corrupted_fog_1_1.0.0-test"


def test_history_joins_splits_by_step(tmp_path):
  path = tmp_path / "metrics.jsonl"
  lines = [
    {"step": 20, "split": "train", "total": 1, "terms": {"image": 0.5}, "timing": {"rate": 9.0}},
    {"step": 10, "split": "train", "total": 2.5, "done": True, "note": "text"},
    {"step": 20, "split": "test", "total": 3.0},
  ]
  path.write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 30, "tot')
  steps, values = read_history(path, 0)
  np.testing.assert_array_equal(steps, [10, 20])
  assert set(values) == {"train/total", "train/terms/image", "test/total"}
  np.testing.assert_array_equal(values["train/total"], [2.5, 1.0])
  np.testing.assert_array_equal(values["train/terms/image"], [np.nan, 0.5])
  np.testing.assert_array_equal(values["test/total"], [np.nan, 3.0])


def test_examples_of_every_class_are_embedded(monkeypatch):
  """Also where a split is sorted by class."""
  embedded_labels = []
  monkeypatch.setattr("scae_jax.evaluation.report_figures.MAX_EMBEDDED", 60)
  monkeypatch.setitem(FIGURES, "embedding", lambda _, labels, *rest: embedded_labels.append(labels))
  labels, entries = np.repeat(np.arange(5), 40), {"lin_match": 1.0, "confusion": [[1]]}
  *_, figure = feature_figures(0, "of", np.eye(200), labels, entries, tuple("abcde"))
  assert figure.name == "embedding-of"
  figure.draw()
  assert (len(embedded_labels[0]), set(embedded_labels[0])) == (60, set(range(5)))


@pytest.mark.parametrize("features", [np.full((6, 3), 0.5), np.arange(6.0)[:, None]])
def test_dead_and_single_features_are_embedded_without_warning(features):
  points = embed(features.astype(np.float32), 0)
  assert np.isfinite(points).all()
  # The same seed ends in the same place; another differs by as much as the points are apart.
  again = embed(features.astype(np.float32), 0)
  np.testing.assert_allclose(points, again, atol=0.01 * np.ptp(points))


@pytest.mark.usefixtures("not_drawn")
def test_accuracies_on_moved_images_are_told_by_displacement(tmp_path, capsys):
  toy = make_dataset(num_wrong=3)
  test = toy.splits["test"]
  test = Split(np.pad(test.images, ((0, 0), (2, 0), (0, 2), (0, 0))), test.labels)  # moved by one
  moved = EvalDataset("translated_toy:0..4", toy.class_names, {"test": test})
  report = run(tmp_path, toy, scored_dataset=moved)
  (entry,) = report["by_displacement"]  # below 4 pixels
  assert (entry["from"], entry["to"], entry["examples"]) == (0, 4, 10)
  assert report["features"]["alive"]["lin_match"] != 0.5
  for way, key in (("LIN-MATCH", "lin_match"), ("LIN-PRED", "lin_pred")):
    expected = pytest.approx(report["features"]["alive"][key])
    assert entry["accuracy"][f"{way}, alive"] == expected
  assert "| LIN-MATCH, alive | " in capsys.readouterr().out.partition("pixels | 0 to 4 |")[2]
