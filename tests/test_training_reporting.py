"""Reports on a run: what is scored, the folder, and failures."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from scae_jax.config import read_settings
from scae_jax.data.dataset import Dataset, EvalDataset, Split
from scae_jax.data.feed import evaluation_examples
from scae_jax.errors import RunError
from scae_jax.evaluation.report import Evaluated
from scae_jax.training import loop, reporting
from scae_jax.training.build import build
from scae_jax.training.reporting import load_scored_set, report_run
from scae_jax.training.run import Run
from scae_jax.training.sweep import reason
from tests import toy_classifier
from tests.runs import train_py
from tests.tiny import initial
from tests.toy_system import make_system, toy_config, toy_data

SPLIT = Split(np.zeros((2, 16, 16, 1), np.uint8), np.zeros(2, np.int32))
BRIGHT = Split(np.full((2, 16, 16, 1), 255, np.uint8), np.zeros(2, np.int32))
PLAIN = Dataset("plain", ("a",), {"train": SPLIT, "test": SPLIT}, has_known_name=True)
MOVED = dataclasses.replace(PLAIN, path="/elsewhere")
MEMORY = dataclasses.replace(PLAIN, has_known_name=False)
HELD_OUT = Dataset(
  "held", ("a",), {"train": SPLIT, "validation": SPLIT, "test": SPLIT}, has_known_name=True
)
OTHER = EvalDataset("other", ("a",), {"test": SPLIT})
SAME_NAME = EvalDataset("plain", ("a",), {"test": SPLIT})
OTHER_VERSION = EvalDataset("plain", ("a",), {"test": BRIGHT}, has_known_name=True)
LONG = dataclasses.replace(MEMORY, name="\N{CJK UNIFIED IDEOGRAPH-5B57}" * 300)
DARK, LIGHT = SPLIT.fingerprint[:8], BRIGHT.fingerprint[:8]


def run_on(dataset=PLAIN, **changes):
  config = toy_config(**changes)
  data = toy_data(config.data.canvas)
  system = make_system(config.model.to_dict(), config.loss.to_dict(), data)
  variables = {3: initial(system, data)}
  return Run(read_settings(config), system, dataset, variables, 12, is_latest=True)


@pytest.fixture
def reports(monkeypatch):
  """Arguments of the evaluators, by kind, and of `write_reports`; nothing is scored."""
  calls = {"written": []}
  for kind in ("evaluate_features", "evaluate_answers", "evaluate_scenes"):
    monkeypatch.setattr(
      reporting, kind, lambda *arguments, kind=kind: calls.setdefault(kind, arguments)
    )
  monkeypatch.setattr(
    reporting, "write_reports", lambda *arguments: calls["written"].append(arguments)
  )
  return calls


@pytest.mark.parametrize(
  ("dataset", "arguments", "folder", "split"),
  [
    (PLAIN, {}, ".", "test"),
    (PLAIN, {"split": "train"}, "plain-train", "train"),
    (PLAIN, {"is_latest": False}, "plain-test-step12", "test"),
    (PLAIN, {"max_examples": 60}, ".", "test"),
    # The report of the config's number of examples stays.
    (PLAIN, {"max_examples": 0}, "plain-test-all", "test"),
    (PLAIN, {"max_examples": 61}, "plain-test-max61", "test"),
    (PLAIN, {"max_examples": 0, "split": "train"}, "plain-train-all", "train"),
    (PLAIN, {"max_examples": 61, "split": "train"}, "plain-train-max61", "train"),
    (
      PLAIN,
      {"max_examples": 0, "config_max_examples": 0, "split": "train"},
      "plain-train",
      "train",
    ),
    (PLAIN, {"max_examples": 59}, "plain-test-max59", "test"),
    (PLAIN, {"max_examples": 9, "is_latest": False}, "plain-test-step12-max9", "test"),
    (PLAIN, {"max_examples": 9, "config_max_examples": 0}, "plain-test-max9", "test"),
    # Only where the name does not say it is there a fingerprint.
    (PLAIN, {"scored": OTHER}, f"other-test-{DARK}", "test"),
    (PLAIN, {"scored": SAME_NAME}, f"plain-test-{DARK}", "test"),
    (PLAIN, {"scored": MOVED}, "plain-test", "test"),
    (PLAIN, {"scored": OTHER_VERSION}, f"plain-test-{LIGHT}", "test"),
    (MEMORY, {}, ".", "test"),
    (MEMORY, {"split": "train"}, f"plain-train-{DARK}", "train"),
    (MEMORY, {"is_latest": False}, f"plain-test-{DARK}-step12", "test"),
    (LONG, {"split": "train"}, f"{LONG.name[:48]}-train-{DARK}", "train"),
    (HELD_OUT, {}, ".", "validation"),
    (HELD_OUT, {"split": "test"}, "held-test", "test"),
    (HELD_OUT, {"scored": PLAIN}, "plain-test", "test"),  # of the same content
  ],
)
def test_folder_and_arguments_of_a_report(
  reports, tmp_path, monkeypatch, capsys, dataset, arguments, folder, split
):
  """A workdir below the current folder is recorded by its relative name."""
  monkeypatch.chdir(tmp_path)
  workdir, options = tmp_path / "runs" / "one", dict(arguments)
  config_max_examples = options.pop("config_max_examples", 60)
  is_latest = options.pop("is_latest", True)
  sizes = {"evaluation__batch_size": 5, "evaluation__max_examples": config_max_examples}
  run = dataclasses.replace(run_on(dataset, data__canvas=20, **sizes), is_latest=is_latest)
  report_run(run, workdir, **options)
  assert str(workdir / "evaluation" / folder) in capsys.readouterr().out
  ((directory, evaluated, items),) = reports["written"]
  assert directory == workdir / "evaluation" / folder
  assert evaluated == Evaluated(
    run.system,
    run.variables,
    step=12,
    batch_size=5,
    max_examples=arguments.get("max_examples", 60),
    provenance={"workdir": "runs/one", "config": run.config.to_dict()},
    history=workdir / "metrics.jsonl",
  )
  assert items is reports["evaluate_features"]
  passed, fitted, scored, scored_split, canvas = items
  assert passed is evaluated
  assert fitted is dataset
  assert scored is arguments.get("scored", dataset)
  assert (scored_split, canvas) == (split, 20)


def test_the_page_comes_before_the_report(home, monkeypatch):
  """For a sweep, a run with a report is finished: it would not come back to write the page."""
  calls = []
  monkeypatch.setattr(reporting, "report_run", lambda *_: calls.append("report"))
  monkeypatch.setattr("scae_jax.page.write.look_inside", lambda *_: calls.append("page"))
  monkeypatch.setattr(loop, "train", lambda *_: run_on())
  train_py("--config=toy.py", f"--workdir={home / 'run'}")
  assert calls == ["page", "report"]


def test_a_set_to_score_on_is_prepared_as_the_runs_own():
  scored = load_scored_set(run_on(data__resize=12), "digits", "")
  assert scored.image_shape == (12, 12, 1)


def classifier_run(dataset, **changes):
  run = run_on(dataset, **changes)
  model, loss = run.config.model.to_dict(), run.config.loss.to_dict()
  return dataclasses.replace(run, system=toy_classifier.make_system(model, loss, toy_data()))


def test_a_model_that_classifies_gets_the_report_on_its_answers(reports, tmp_path):
  run = classifier_run(HELD_OUT, evaluation__max_examples=7)
  report_run(run, tmp_path, scored=OTHER)
  ((_, evaluated, items),) = reports["written"]
  assert (evaluated.system, evaluated.variables) == (run.system, run.variables)
  assert evaluated.max_examples == 7
  assert items is reports["evaluate_answers"]
  *arguments, examples, make_batch = items
  assert arguments == [evaluated, OTHER, "test"]
  np.testing.assert_array_equal(examples["image"], SPLIT.images)
  batch = make_batch(jax.tree.map(jnp.asarray, examples), jnp.arange(1))
  assert batch["image"].shape[1:] == (18, 18, 1)  # the canvas


def test_a_classifier_is_not_scored_on_other_classes(tmp_path):
  other = dataclasses.replace(OTHER, class_names=("b",))
  with pytest.raises(ValueError, match=r"classes.*\[b\]"):
    report_run(classifier_run(PLAIN), tmp_path, scored=other)


def test_a_run_on_overlays_is_scored_on_the_pairs_that_it_was_held_out_on():
  """The batches are those of the run's own feed; other data sets are overlaid likewise."""
  config = toy_classifier.classifier_config(data__canvas=20, data__overlay=True, data__max_shift=2)
  settings = read_settings(config)
  _, dataset, feed = build(settings)
  examples, make_batch = evaluation_examples(dataset.splits["test"], settings.data)
  rows = jnp.array([5, 0, 7])
  made = make_batch(jax.tree.map(jnp.asarray, examples), rows)
  expected = feed.evaluation_batch(jax.tree.map(jnp.asarray, feed.heldout), rows)
  assert set(made) == {"image", "label", "other_label", "sources"}
  for name, array in expected.items():
    np.testing.assert_array_equal(made[name], array)
  assert not np.any(made["label"] == made["other_label"])


def test_a_classifier_needs_no_minimum_of_examples():
  """A model with clusters does: test_training_build.py."""
  build(read_settings(toy_classifier.classifier_config(evaluation__max_examples=5)))


@pytest.mark.parametrize(
  "error",
  [
    OSError(28, "No space left on device"),
    ValueError("Features 'code' are not finite."),
    RunError("config.evaluation.batch_size must be less."),
    TypeCheckError("Expected templates [m, t, t, c]."),  # arrays of a system of one's own
  ],
)
def test_report_that_fails_after_the_training_is_no_refusal(error, home, monkeypatch, capsys):
  """Exit code 1 and one line, which a sweep shows: the saved step, the command, the error."""

  def fail(run, workdir):
    raise error

  config = toy_config().unlock()
  config.data.name = "mine.images"
  settings = read_settings(config)
  run = types.SimpleNamespace(step=24, settings=settings, config=settings.config)
  monkeypatch.setattr(loop, "train", lambda *_: run)
  monkeypatch.setattr(reporting, "report_run", fail)
  workdir = home / "my run"
  with pytest.raises(SystemExit) as info:
    train_py("--config=toy.py", f"--workdir={workdir}")
  assert info.value.code == 1
  output = capsys.readouterr().err
  (line,) = output.splitlines()
  command = f"evaluate.py --workdir='{workdir}' --system=tests.toy_system --source=mine.images`"
  for fact in ("step 24", command, str(error)):
    assert fact in line
  (home / "train.log").write_text(f"compiled\n{output}")
  assert reason(home / "train.log", 0) == line
