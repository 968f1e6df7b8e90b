"""Parameters exported from a run, read back by evaluate.py, and what is wrong with them."""

import dataclasses
import functools
import io
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

import scae_jax
from experiments import curve, export
from experiments.export import save_pretrained
from scae_jax.config import read_settings
from scae_jax.errors import RunError
from scae_jax.training import run as run_module
from scae_jax.training.loop import train
from scae_jax.training.run import named_folders, open_run
from tests.runs import ROOT, evaluate_py, metrics, stop_after
from tests.stand_ins import call, refusal, refused
from tests.toy_system import toy_config

TWO_SEEDS = toy_config(train__seeds=2, train__keep_checkpoints=9)

pytestmark = pytest.mark.usefixtures("compiled_once", "one_device_always")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, compiled_once, one_device_always) -> pathlib.Path:
  """A run of two seeds, with its checkpoints of steps 8, 16 and 24."""
  folder = tmp_path_factory.mktemp("runs") / "toy"
  train(TWO_SEEDS, folder)
  return folder


@pytest.fixture(scope="module")
def run(workdir):
  return open_run(workdir)


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("saved") / "toy"
  save_pretrained(run, 1, folder, "float32", {"some": 1.0})
  return folder


@pytest.fixture
def exported(saved, tmp_path) -> pathlib.Path:
  """A copy, to be damaged."""
  return pathlib.Path(shutil.copytree(saved, tmp_path / "pretrained" / "toy"))


@pytest.mark.parametrize(("dtype", "precision"), [("float32", 0.0), ("float16", 1e-3)])
def test_saved_parameters_come_back(run, tmp_path, dtype, precision):
  save_pretrained(run, 1, tmp_path / "toy", dtype, {})
  opened = open_run(tmp_path / "toy")
  assert (opened.step, opened.is_latest) == (24, True)
  assert list(opened.variables) == [1]
  assert opened.config.to_dict() == run.config.to_dict()
  close = functools.partial(np.testing.assert_allclose, rtol=precision, atol=precision / 100)
  jax.tree.map(close, opened.variables[1], run.variables[1])
  assert {leaf.dtype for leaf in jax.tree.leaves(opened.variables)} == {np.dtype(np.float32)}


def test_exported_config_does_not_name_the_folder_that_the_run_started_from(run, tmp_path):
  config = ConfigDict(run.config.to_dict())
  config.train.start_from, config.train.start_modules = "/somewhere/runs/first", ("encoder",)
  started = dataclasses.replace(run, settings=read_settings(config))
  save_pretrained(started, 1, tmp_path, "float16", {})
  assert "/somewhere" not in (tmp_path / "config.json").read_text()
  assert open_run(tmp_path).step == run.step  # the config is one that can be read


def test_export_and_evaluate_by_name(workdir, tmp_path, monkeypatch, capsys):
  """The seed of the lowest held-out loss is exported; the same figures come out."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  at_8 = next(line for line in lines if line["step"] == 8 and line["split"] == "test")
  losses = [at_8["seeds"][seed]["selection_loss"] for seed in "01"]
  folder = tmp_path / "pretrained" / "toy"
  call(monkeypatch, export, workdir, folder, "--step=8")
  source = json.loads((folder / "source.json").read_text())
  assert (source["step"], source["seed"]) == (8, int(np.argmin(losses)))
  assert json.loads((folder / "data.json").read_text())["name"] == "digits"
  assert re.search(rf"step 8\b.*seed {source['seed']}\b", capsys.readouterr().out)

  monkeypatch.setattr(run_module, "PRETRAINED", folder.parent)
  monkeypatch.chdir(tmp_path)
  evaluate_py("--pretrained=toy")
  written = tmp_path / "runs" / "pretrained-toy" / "evaluation" / "metrics.json"
  metrics = json.loads(written.read_text())
  assert (metrics["step"], metrics["seed"]) == (8, source["seed"])

  # Beside a run, and into a folder with the reports of others.
  for other in (workdir, tmp_path / "new"):
    files = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    evaluate_py(f"--workdir={other}", "--pretrained=toy")
    added = other / "pretrained-toy"
    assert json.loads((added / "evaluation" / "metrics.json").read_text())["step"] == 8
    now = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    assert {path: now[path] for path in now if not path.is_relative_to(added)} == files
    shutil.rmtree(added)


def test_of_a_run_stopped_between_evaluations_the_last_one_chooses(tmp_path, monkeypatch, capsys):
  """A run of two seeds that has checkpoints of steps 4, before any held-out loss, and 20."""
  for num_dispatches, step in ((1, 4), (4, 20)):
    stop_after(num_dispatches, TWO_SEEDS, tmp_path / "toy", rf"\b{step}\D+24\b")
  at_16 = metrics(tmp_path / "toy")[-1]
  assert (at_16["step"], at_16["split"]) == (16, "test")
  losses = [at_16["seeds"][seed]["selection_loss"] for seed in "01"]
  with (tmp_path / "toy" / "metrics.jsonl").open("a") as file:
    file.write('{"split": "train", "st')  # as a kill leaves it
  arguments = (monkeypatch, export, tmp_path / "toy", tmp_path / "out")
  call(*arguments)
  source = json.loads((tmp_path / "out" / "source.json").read_text())
  assert (source["step"], source["seed"]) == (20, int(np.argmin(losses)))
  assert re.search(rf"seed {source['seed']}\b.*step 16\b", capsys.readouterr().out)

  assert "step 4" in refusal(capsys, *arguments, "--step=4")
  call(*arguments, "--step=4", "--seed=1")
  assert json.loads((tmp_path / "out" / "source.json").read_text())["seed"] == 1


def run_curve(monkeypatch, workdir, folder, *flags):
  """Runs the command; returns the points of its file."""
  monkeypatch.setattr(curve, "keep_compiled", lambda folder: None)
  call(monkeypatch, curve, workdir, folder, "--max_examples=60", *flags)
  return json.loads((folder / "curve-toy.json").read_text())["points"]


@pytest.fixture
def opened_steps(monkeypatch):
  """Steps of the checkpoints that the command opens, in order."""
  steps = []
  monkeypatch.setattr(
    curve, "open_run", lambda folder, step: steps.append(step) or open_run(folder, step)
  )
  return steps


@pytest.fixture
def half_right(monkeypatch):
  """Every seed has an accuracy of a half, without a measurement."""

  def accuracies(system, variables, dataset, scored_sets, **sizes):
    return {"LIN-MATCH, code": {dataset.name: dict.fromkeys(variables, 0.5)}}

  monkeypatch.setattr(curve, "accuracies", accuracies)


def test_curve_goes_on_where_it_was_stopped(workdir, tmp_path, monkeypatch, opened_steps):
  """Stopped at the third of four points; known points are not measured again."""
  measure, measured = curve.accuracies, []

  def stop_at_third(*arguments, **options):
    if len(measured) == 2:
      raise KeyboardInterrupt
    measured.append(options["max_examples"])
    return measure(*arguments, **options)

  with monkeypatch.context() as patch:
    patch.setattr(curve, "accuracies", stop_at_third)
    with pytest.raises(SystemExit):
      run_curve(patch, workdir, tmp_path, "--steps=8,24")
  before = json.loads((tmp_path / "curve-toy.json").read_text())["points"]
  assert [(point["step"], point["seed"]) for point in before] == [(8, 0), (8, 1)]
  assert measured == [60, 60]

  opened_steps.clear()
  points_of_two_steps = run_curve(monkeypatch, workdir, tmp_path, "--steps=24")
  assert opened_steps == [24]
  assert points_of_two_steps[:2] == before
  points = run_curve(monkeypatch, workdir, tmp_path)
  assert opened_steps == [24, 16]
  expected = [(step, seed) for step in (8, 16, 24) for seed in (0, 1)]
  assert [(point["step"], point["seed"]) for point in points] == expected
  assert [point for point in points if point["step"] != 16] == points_of_two_steps
  assert run_curve(monkeypatch, workdir, tmp_path, "--steps=8,24") == points
  assert opened_steps == [24, 16]
  assert all(0 <= point["LIN-MATCH, code"] <= 100 for point in points)


@pytest.mark.usefixtures("half_right")
def test_curve_has_minutes_percents_and_a_picture(workdir, tmp_path, monkeypatch):
  points = run_curve(monkeypatch, workdir, tmp_path)
  minutes = [point["minutes"] for point in points if point["seed"] == 0]
  assert 0 < minutes[0] < minutes[1] < minutes[2]
  assert {point["LIN-MATCH, code"] for point in points} == {50.0}
  assert (tmp_path / "curve-toy.png").stat().st_size > 1000
  record = json.loads((tmp_path / "curve-toy.json").read_text())
  assert record["command"] == f"python -m experiments.curve {workdir} {tmp_path} --max_examples=60"
  curve.draw(tmp_path, "answers", [{"step": 8, "seed": 0, "minutes": None, "accuracy": 50.0}])


@pytest.mark.usefixtures("half_right")
def test_curve_measures_points_of_another_training_anew(workdir, tmp_path, monkeypatch):
  """A training is recognised by its minutes."""
  points = run_curve(monkeypatch, workdir, tmp_path, "--steps=8")
  path = tmp_path / "curve-toy.json"
  of_another = points[0] | {"minutes": 2 * points[0]["minutes"], "LIN-MATCH, code": -1.0}
  record = json.loads(path.read_text()) | {"points": [of_another, *points[1:]]}
  path.write_text(json.dumps(record))
  assert run_curve(monkeypatch, workdir, tmp_path, "--steps=8") == points


@pytest.mark.usefixtures("half_right")
def test_curve_keeps_points_of_steps_without_minutes(workdir, tmp_path, monkeypatch, opened_steps):
  """Checkpoints between two lines of metrics have none."""
  monkeypatch.setattr(curve, "minutes_by_step", lambda _: {})
  points = run_curve(monkeypatch, workdir, tmp_path, "--steps=8")
  assert [point["minutes"] for point in points] == [None, None]
  assert run_curve(monkeypatch, workdir, tmp_path, "--steps=8") == points
  assert opened_steps == [8]


def test_curve_refuses_another_number_of_examples_and_steps_without_checkpoint(
  workdir, tmp_path, monkeypatch, capsys
):
  record = {"max_examples": 61, "points": []}
  (tmp_path / "curve-toy.json").write_text(json.dumps(record))
  arguments = (capsys, run_curve, monkeypatch, workdir)
  assert "--max_examples=61" in refused(*arguments, tmp_path, "--steps=8")
  assert "8, 16, 24" in refused(*arguments, tmp_path / "new", "--steps=8,12")


@pytest.mark.parametrize("name", ["tpy", "../../x", "toy/"])
def test_name_of_parameters_is_of_those_that_are_there_and_no_path(exported, monkeypatch, name):
  monkeypatch.setattr(run_module, "PRETRAINED", exported.parent)
  save = exported.parent.parent.parent / "x"
  save.mkdir(exist_ok=True)
  (save / "params.npz").write_bytes(b"")
  with pytest.raises(RunError, match=r"\['toy'\]"):
    named_folders("", name)


def test_results_of_pretrained_parameters_replace_no_others(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shipped = run_module.PRETRAINED / "digits"
  assert named_folders("run", "") == (pathlib.Path("run"), pathlib.Path("run"))
  assert named_folders("run", "digits") == (shipped, pathlib.Path("run/pretrained-digits"))
  assert named_folders("", "digits") == (shipped, pathlib.Path("runs/pretrained-digits"))
  # A run that was trained under just this name.
  (tmp_path / "runs" / "pretrained-digits").mkdir(parents=True)
  (tmp_path / "runs" / "pretrained-digits" / "config.json").write_text("{}")
  with pytest.raises(RunError, match="--workdir"):
    named_folders("", "digits")


def test_files_that_are_damaged_or_do_not_fit(exported):
  def assert_refused(name, content, message):
    path = exported / name
    original = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(RunError, match=message):
      open_run(exported)
    path.write_bytes(original)

  wrong = [b"[1]", b"{}", b'{"step": "x", "seed": 0}', b'{"step": 1, "seed": [0]}', b"\xff"]
  for content in (*wrong, b"[" * 10**5):
    assert_refused("source.json", content, r"source.json")
  data = json.loads((exported / "data.json").read_text()) | {"name": "other"}
  assert_refused("data.json", json.dumps(data).encode(), "name.*'other'.*'digits'")
  config = json.loads((exported / "config.json").read_text())
  config["model"]["num_features"] = 9
  message = r"decoder/kernel.*\(9, 324\).*\(8, 324\)"
  assert_refused("config.json", json.dumps(config).encode(), message)
  params = (exported / "params.npz").read_bytes()
  assert_refused("params.npz", params[:-200], "BadZipFile")
  with np.load(exported / "params.npz") as file:
    arrays = dict(file) | {"more/kernel": np.zeros(3)}
  more = io.BytesIO()
  np.savez(more, **arrays)
  assert_refused("params.npz", more.getvalue(), r"\['more/kernel'\]")


def test_pretrained_parameters_have_one_step(exported, monkeypatch, capsys):
  monkeypatch.setattr(run_module, "PRETRAINED", exported.parent)
  stderr = refused(capsys, evaluate_py, "--pretrained=toy", "--step=best")
  assert "--step=best" in stderr


def test_numbers_too_large_for_float16(run, tmp_path):
  variables = jax.tree.map(np.array, dict(run.variables))
  variables[0]["params"]["encoder"]["bias"] += 1e5
  run = dataclasses.replace(run, variables=variables)
  with pytest.raises(RunError, match=r"encoder/bias.*float16"):
    save_pretrained(run, 0, tmp_path / "toy", "float16", {})
  with pytest.raises(RunError, match="'int8'"):
    save_pretrained(run, 0, tmp_path / "toy", "int8", {})


def test_what_is_shipped_can_be_opened(caplog):
  shipped = sorted(path.parent for path in (ROOT / "pretrained").glob("*/params.npz"))
  assert {"digits", "mnist"} <= {folder.name for folder in shipped}
  for folder in shipped:
    assert scae_jax.load(folder).step > 0
  assert not caplog.records  # every file is as it was written
