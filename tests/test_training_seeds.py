"""Several seeds trained at once equal the runs of each seed alone."""

import pathlib

import chex
import jax
import numpy as np
import pytest

from experiments.summarize import read_run
from scae_jax.evaluation.evaluators import evaluate_features
from scae_jax.evaluation.report import Evaluated, write_reports
from scae_jax.files import read_json
from scae_jax.training import hosts, loop, step
from scae_jax.training.loop import train
from scae_jax.training.run import open_run
from tests.runs import metrics
from tests.toy_system import toy_config

pytestmark = pytest.mark.usefixtures("compiled_once")

CADENCE = {"train__num_steps": 24, "train__log_every": 16, "train__checkpoint_every": 12}


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> pathlib.Path:
  """Three seeds on two devices."""
  workdir = tmp_path_factory.mktemp("together")
  two = hosts.make_mesh(jax.devices()[:2])
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, "make_mesh", lambda: two)
    train(toy_config(train__seed=5, train__seeds=3, **CADENCE), workdir)
  return workdir


@pytest.mark.parametrize("seed", [6, 7])
def test_a_seed_is_the_run_that_it_would_be_alone(together, tmp_path, seed):
  run = open_run(together)
  alone = train(toy_config(train__seed=seed, **CADENCE), tmp_path)
  # Compiled in another program: sums may be taken in another order.
  chex.assert_trees_all_close(run.variables[seed], alone.variables[seed], rtol=1e-5, atol=1e-6)
  for line, line_alone in zip(metrics(together), metrics(tmp_path), strict=True):
    assert line["step"] == line_alone.pop("step")
    assert line["split"] == line_alone.pop("split")
    chex.assert_trees_all_close(line["seeds"][str(seed)], line_alone, rtol=1e-5)


def test_seeds_side_by_side_are_those_one_after_another(together, tmp_path, monkeypatch):
  """As a GPU computes them."""
  monkeypatch.setattr(step, "_one_after_another", step._side_by_side)
  config = toy_config(train__seed=5, train__seeds=3, train__keep_checkpoints=9, **CADENCE)
  run = train(config, tmp_path)
  chex.assert_trees_all_close(run.variables, open_run(together).variables, rtol=1e-5, atol=1e-6)


def test_seeds_differ_and_their_mean_selects_the_best_checkpoint(together):
  for line in metrics(together):
    totals = {line["seeds"][seed]["total"] for seed in ("5", "6", "7")}
    assert len(totals) == 3
    assert line["total"] == pytest.approx(np.mean(list(totals)), rel=1e-12)
    terms = [line["seeds"][seed]["terms"]["image"] for seed in ("5", "6", "7")]
    assert line["terms"]["image"] == pytest.approx(np.mean(terms), rel=1e-12)
  lines = [line for line in metrics(together) if line["split"] == "test"]
  means = {line["step"]: line["selection_loss"] for line in lines}
  assert open_run(together, "best").step == min(means, key=means.__getitem__)


def test_report_of_each_seed_and_one_table(together, capsys):
  run, folder = open_run(together), together / "evaluation"
  fields = {"batch_size": 32, "max_examples": 100, "history": together / "metrics.jsonl"}
  evaluated = Evaluated(run.system, run.variables, step=run.step, **fields)
  items = evaluate_features(evaluated, run.dataset, run.dataset, "test", 18)
  reports = write_reports(folder, evaluated, items)
  assert list(reports) == [5, 6, 7]
  errors = [report["metrics"]["squared_error"] for report in reports.values()]
  assert len(set(errors)) == 3
  mean, deviation = np.mean(errors), np.std(errors, ddof=1)
  summary = read_json(folder / "metrics.json")
  assert summary["standard_deviation"]["squared error"] == pytest.approx(deviation)
  (row,) = (line for line in capsys.readouterr().out.splitlines() if "| squared error" in line)
  assert row.endswith(f"| {mean:.1f} ({deviation:.1f}) |")
  assert all((folder / f"seed-{seed}" / "training_curves.png").is_file() for seed in reports)
  runs = read_run(together)  # for a table over several runs
  assert [report["metrics"]["seed"] for report in runs] == [5, 6, 7]
  assert [report["figures"]["squared error"] for report in runs] == errors
