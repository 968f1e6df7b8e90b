"""experiments/free_form.py on an untrained toy: what is written, and what is refused."""

import numpy as np
import optax
import pytest

from experiments import free_form as command
from scae_jax.data.digits import load_digits
from scae_jax.evaluation import scores
from scae_jax.evaluation.examples import load_split
from scae_jax.evaluation.probes import fit_probe
from tests import toy_free_form
from tests.stand_ins import call, open_for_commands, refusal, written
from tests.tiny import initial
from tests.toy_system import toy_config, toy_data


@pytest.fixture(scope="module")
def toy():
  """The toy with a free form, and initial parameters."""
  config, data = toy_config(), toy_data(side=18)
  system = toy_free_form.make_system(dict(config.model), dict(config.loss), data)
  return system, initial(system, data)


@pytest.fixture(autouse=True)
def opened(toy, monkeypatch, tmp_path):
  monkeypatch.setenv("SCAE_JAX_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(scores, "MAX_PIXEL_EXAMPLES", 60)
  monkeypatch.setattr(toy_free_form, "NUM_SAMPLES", 4)
  config = toy_config(evaluation__max_examples=100, data__canvas=18)
  open_for_commands(monkeypatch, toy[0], load_digits(), {0: toy[1]}, config)


def test_the_command_writes_a_table_numbers_and_a_picture(monkeypatch, tmp_path, capsys):
  out = tmp_path / "out"
  flags = ("--num_steps=40", "--num_samples=2", "--max_examples=12", "--batch_size=8")
  flags += ("--train_examples=40", "--learning_rate=0.05")
  call(monkeypatch, command, tmp_path / "toy", out, *flags)
  names = [f"free-form-toy-encoder.{end}" for end in ("json", "md", "png")]
  assert sorted(path.name for path in out.iterdir()) == names
  record, text = written(capsys, out, "free-form-toy-encoder")
  assert (record["step"], record["seed"], record["start"]) == (7, 0, "encoder")
  assert record["command"].startswith(f"python -m experiments.free_form {tmp_path / 'toy'}")
  assert record["command"].endswith(" ".join(flags))
  fitted = [record[kind]["reconstruction"]["fitted_examples"] for kind in command.PROBES]
  assert fitted == [100, 40, 40]
  assert list(record["results"]) == ["digits", "rotated_digits:35", "affine_digits"]
  for result in record["results"].values():
    assert result["examples"] == 12
    bound, means = result["bound"], result["terms"]
    assert bound["examples_that_did_not_rise"] == 0
    assert 0 < bound["least_rise"] <= bound["after"] - bound["before"]
    # The posterior comes to look like the image instead of what an untrained encoder gave.
    shares = result["accuracy"]["reconstruction"]
    assert shares["after_alike"] > shares["after"]
    for when in ("before", "after"):
      # Sums of float32 numbers of size 1,000
      assert -sum(term[when] for term in means.values()) == pytest.approx(bound[when], rel=1e-5)
  assert text.startswith("| | examples | bound before | after | did not rise | pixels | latents |")
  assert "| | LIN-PRED | before | after | before, fitted alike | after, fitted alike |" in text
  unmoved, rotated = (record["results"][name] for name in ("digits", "rotated_digits:35"))
  bounds = " | ".join(f"{unmoved['bound'][when]:.1f}" for when in ("before", "after"))
  terms = (f"{term['before']:.1f} to {term['after']:.1f}" for term in unmoved["terms"].values())
  assert f"| digits | 12 | {bounds} | 0 | {' | '.join(terms)} |" in text
  shares = unmoved["accuracy"]["reconstruction"]
  assert shares["after"] != shares["before"]
  percent = " | ".join(f"{100 * shares[when]:.1f}" for when in command.WHEN)
  assert f"| digits | reconstruction | {percent} |" in text
  every, alike = (f"{100 * rotated['pixels'][kind]:.1f}" for kind in ("every", "alike"))
  assert f"| rotated_digits:35 | raw pixels | {every} |  | {alike} |  |" in text
  fitted, scored = (
    (split["image"].reshape(len(split["image"]), -1) / 255, split["label"])
    for split in (load_split(load_digits(), *of) for of in (("train", 40), ("test", 12)))
  )
  expected = fit_probe(*fitted, num_classes=10).accuracy(*scored)
  assert unmoved["pixels"]["alike"] == pytest.approx(expected)
  assert "affine_digits: " in text  # what its images are


def test_bounds_that_do_not_rise_are_counted_and_the_prior_is_a_start(
  monkeypatch, tmp_path, capsys
):
  flags = ("--num_steps=0", "--num_samples=1", "--max_examples=3", "--train_examples=40")
  flags += ("--dataset=digits", "--optimizer=sgd")
  call(monkeypatch, command, tmp_path / "toy", tmp_path, "--start=prior", *flags)
  record, _ = written(capsys, tmp_path, "free-form-toy-prior")
  assert (record["optimizer"], record["learning_rate"]) == ("sgd", 1e-4)
  (result,) = record["results"].values()
  assert result["bound"]["examples_that_did_not_rise"] == 3
  shares = result["accuracy"]["reconstruction"]
  assert shares["after"] == shares["before"]  # of the prior, the same for all


def test_optimisers_are_of_the_name_and_their_rates_fall():
  value, gradient = {"x": np.float32(1.0)}, {"x": np.float32(3.0)}
  for name, first in (("sgd", -0.3), ("adam", -0.1)):
    optimizer = command.make_optimizer(name, 0.1, 2)
    state = optimizer.init(value)
    steps = []
    for _ in range(3):
      step, state = optimizer.update(gradient, state, value)
      steps.append(step["x"])
    np.testing.assert_allclose(steps, [first, first / 2, 0], atol=1e-6)
  record = {"optimizer": "lbfgs", "learning_rate": None}
  assert command.describe_optimizer(record) == "L-BFGS with a line search"
  assert isinstance(command.make_optimizer("lbfgs", None, 2), optax.GradientTransformationExtraArgs)


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--optimizer=newton", "'newton'"),
    ("--learning_rate=0", "--learning_rate"),
    ("--optimizer=lbfgs --learning_rate=1", "--learning_rate"),
    ("--max_examples=-1", "max_examples"),
    ("--dataset=rotated_digits", "'rotated_digits'"),
  ],
)
def test_the_command_refuses_in_one_message(monkeypatch, tmp_path, capsys, flag, message):
  arguments = (tmp_path / "toy", tmp_path / "out", "--dataset=digits", *flag.split())
  assert message in refusal(capsys, monkeypatch, command, *arguments)
