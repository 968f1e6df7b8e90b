"""experiments/free_form.py on a trained run of the toy, and the figure that it draws."""

import dataclasses
import json

import numpy as np
import optax
import pytest

from experiments import free_form as command
from experiments import one_run
from scae_jax.evaluation import report, scores
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import fit_probe
from scae_jax.figures import FIGURES
from scae_jax.training.loop import train
from scae_jax.training.reporting import report_run
from tests import toy_free_form, toy_system
from tests.test_figures_pictures import drawn, rendered
from tests.toy_system import toy_config

RNG = np.random.RandomState(0)


def test_images_stand_above_what_is_believed_of_them():
  pictures = {name: RNG.uniform(size=(12, 4, 4, 1)) for name in ("image", "before", "after")}
  bounds = {"bound_before": -np.arange(12.0) - 0.4, "bound_after": np.arange(12.0)}
  figure = FIGURES["free_form"](**pictures, **bounds, title="Turned")
  cells = drawn(figure)
  assert set(cells) == {(row, column) for row in range(3) for column in range(10)}
  for row, values in enumerate(pictures.values()):
    for column in range(10):
      np.testing.assert_array_equal(cells[row, column], np.float32(values[column, ..., 0]))
  written = [axes.get_xlabel() for axes in figure.axes]
  assert written[:10] == [""] * 10
  assert written[10:13] == ["-0 nats", "-1", "-2"]
  assert written[20:23] == ["0 nats", "1", "2"]
  rendered(figure)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run of the toy with a free form: its folder, and the run."""
  workdir = tmp_path_factory.mktemp("runs") / "toy"
  config = toy_config(train__num_steps=8, evaluation__max_examples=100)
  with config.unlocked():
    config.system = "tests.toy_free_form"
  return workdir, train(config, workdir)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(one_run, "keep_compiled", lambda folder: None)
  monkeypatch.setattr(report, "save_figures", lambda directory, drawers: None)
  monkeypatch.setattr(scores, "MAX_PIXEL_EXAMPLES", 60)


def main(monkeypatch, *arguments):
  monkeypatch.setattr("sys.argv", ["free_form", *map(str, arguments)])
  command.main()


def test_the_command_writes_a_table_numbers_and_a_picture(trained, monkeypatch, tmp_path, capsys):
  flags = ("--num_steps=40", "--num_samples=2", "--max_examples=12", "--batch_size=8")
  flags += ("--train_examples=40", "--learning_rate=0.05")
  main(monkeypatch, trained[0], tmp_path, *flags)
  names = [f"free-form-toy-encoder.{end}" for end in ("json", "md", "png")]
  assert sorted(path.name for path in tmp_path.iterdir()) == names
  record = json.loads((tmp_path / names[0]).read_text())
  assert (record["step"], record["seed"], record["start"]) == (8, 0, "encoder")
  assert record["command"].startswith(f"python -m experiments.free_form {trained[0]}")
  assert record["command"].endswith(" ".join(flags))
  assert {"date", "versions", "hardware"} <= set(record)
  assert record["probes"]["reconstruction"]["fitted_examples"] == 100
  for kind in ("probes_before_alike", "probes_alike"):
    assert record[kind]["reconstruction"]["fitted_examples"] == 40
  assert list(record["results"]) == ["digits", "rotated_digits:35", "affine_digits"]
  for result in record["results"].values():
    assert result["examples"] == 12
    bound = result["bound"]
    assert bound["examples_that_did_not_rise"] == 0
    assert 0 < bound["least_rise"] <= bound["after"] - bound["before"]
    # The posterior comes to look like the image instead of what a few steps of training gave.
    shares = result["accuracy"]["reconstruction"]
    assert shares["after"] != shares["before"]
    assert shares["after_alike"] > shares["after"]
    means = result["terms"]
    for when in ("before", "after"):
      # Sums of float32 numbers of size 1,000
      assert -sum(term[when] for term in means.values()) == pytest.approx(bound[when], rel=1e-5)
  table = (tmp_path / names[1]).read_text()
  assert table.strip() in capsys.readouterr().out
  lines = table.splitlines()
  assert lines[0] == "| | examples | bound before | after | did not rise | pixels | latents |"
  bound, shares, means = (
    record["results"]["digits"][key] for key in ("bound", "accuracy", "terms")
  )
  cells = ["digits", "12", f"{bound['before']:.1f}", f"{bound['after']:.1f}", "0"]
  cells += [f"{one['before']:.1f} to {one['after']:.1f}" for one in means.values()]
  assert lines[2] == f"| {' | '.join(cells)} |"
  head = "| | LIN-PRED | before | after | before, fitted alike | after, fitted alike |"
  assert lines[6] == head
  share = shares["reconstruction"]
  cells = ["digits", "reconstruction"]
  cells += [f"{100 * share[when]:.1f}" for when in command.WHEN]
  assert lines[8] == f"| {' | '.join(cells)} |"
  rotated = record["results"]["rotated_digits:35"]["pixels"]
  every, alike = (f"{100 * rotated[kind]:.1f}" for kind in ("every", "alike"))
  assert lines[11] == f"| rotated_digits:35 | raw pixels | {every} |  | {alike} |  |"
  fitted, scored = (
    (one["image"].reshape(len(one["image"]), -1) / 255, one["label"])
    for one in (load_split(trained[1].dataset, *of) for of in (("train", 40), ("test", 12)))
  )
  expected = fit_probe(*fitted, num_classes=10).accuracy(*scored)
  assert record["results"]["digits"]["pixels"]["alike"] == pytest.approx(expected)
  assert "affine_digits: affNIST's distribution of maps" in table
  assert "100 training images" in table
  assert "40 training images that were inferred in the same way" in table
  assert "40 steps of Adam, learning rate 0.05" in table


def test_bounds_that_do_not_rise_are_counted_and_the_prior_is_a_start(
  trained, monkeypatch, tmp_path
):
  flags = ("--num_steps=0", "--num_samples=1", "--max_examples=3", "--train_examples=40")
  flags += ("--dataset=digits", "--optimizer=sgd")
  main(monkeypatch, trained[0], tmp_path, "--start=prior", *flags)
  record = json.loads((tmp_path / "free-form-toy-prior.json").read_text())
  assert (record["optimizer"], record["learning_rate"]) == ("sgd", 1e-4)
  text = (tmp_path / "free-form-toy-prior.md").read_text()
  assert "prior: 0 steps of gradient descent, learning rate 0.0001 under a cosine. Step 8" in text
  (result,) = record["results"].values()
  assert result["bound"]["examples_that_did_not_rise"] == 3
  shares = result["accuracy"]["reconstruction"]
  assert shares["after"] == shares["before"]  # of the prior, the same for all


def test_the_report_on_the_run_has_its_readings(trained, tmp_path, capsys):
  report_run(trained[1], tmp_path)
  metrics = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())
  share = metrics["readings"]["reconstruction"]["lin_pred"]
  row = next(line for line in capsys.readouterr().out.splitlines() if "reconstruction  " in line)
  assert row.split() == ["reconstruction", f"{100 * share:.1f}", "%"]


def test_optimisers_are_of_the_name_and_their_rates_fall():
  value = {"x": np.float32(1.0)}
  gradient = {"x": np.float32(3.0)}
  for name, first in (("sgd", -0.3), ("adam", -0.1)):
    optimizer = command.make_stepper(name, 0.1, 2)
    state = optimizer.init(value)
    steps = []
    for _ in range(3):
      step, state = optimizer.update(gradient, state, value)
      steps.append(step["x"])
    np.testing.assert_allclose(steps, [first, first / 2, 0], atol=1e-6)
  record = {"optimizer": "lbfgs", "learning_rate": None}
  assert command.described(record) == "L-BFGS with a line search"
  assert isinstance(command.make_stepper("lbfgs", None, 2), optax.GradientTransformationExtraArgs)


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--optimizer=newton", "invalid choice: 'newton' (choose from"),
    ("--learning_rate=0", "--learning_rate must be above 0; it is 0.0"),
    ("--optimizer=lbfgs --learning_rate=1", "leave --learning_rate out"),
    ("--num_steps=-1", "num_steps of 0 or more"),
    ("--max_examples=-1", "max_examples must be 0 (all) or more, got -1"),
    ("--dataset=rotated_digits", "does not say how far"),
    ("--step=3", "3"),
  ],
)
def test_the_command_refuses_in_one_message(trained, monkeypatch, tmp_path, capsys, flag, message):
  with pytest.raises(SystemExit) as stopped:
    main(monkeypatch, trained[0], tmp_path / "out", "--dataset=digits", *flag.split())
  assert stopped.value.code == 2
  assert message in capsys.readouterr().err


def test_a_system_without_a_free_form_is_refused(trained, monkeypatch, tmp_path, capsys):
  run = trained[1]
  data = toy_system.toy_data(side=18)
  model, loss = dict(run.config.model), dict(run.config.loss)
  assert toy_free_form.make_system(model, loss, data).free_form is not None
  system = toy_system.make_system(model, loss, data)
  plain = dataclasses.replace(run, system=system, variables={0: {}})
  monkeypatch.setattr(one_run, "open_run", lambda *arguments: plain)
  with pytest.raises(SystemExit):
    main(monkeypatch, trained[0], tmp_path / "out")
  assert "whose system has a `free_form`" in capsys.readouterr().err
  assert not (tmp_path / "out").exists()
