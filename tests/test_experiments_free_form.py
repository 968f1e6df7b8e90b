"""experiments/free_form.py on an untrained toy: what is written, and what is refused."""

import json
import pathlib

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


def open_toy(patch: pytest.MonkeyPatch, toy, cache: pathlib.Path) -> None:
  """Commands find the toy, whose fits and bounds are of few examples."""
  patch.setenv("SCAE_JAX_CACHE", str(cache))
  patch.setattr(scores, "MAX_PIXEL_EXAMPLES", 60)
  patch.setattr(toy_free_form, "NUM_SAMPLES", 4)
  config = toy_config(evaluation__max_examples=100, data__canvas=18)
  open_for_commands(patch, toy[0], load_digits(), {0: toy[1]}, config)


@pytest.fixture(autouse=True)
def opened(toy, monkeypatch, tmp_path):
  open_toy(monkeypatch, toy, tmp_path / "cache")


FLAGS = (
  "--num_steps=40",
  "--num_samples=2",
  "--max_examples=12",
  "--batch_size=8",
  "--train_examples=40",
  "--learning_rate=0.05",
)


@pytest.fixture(scope="module")
def folder(toy, tmp_path_factory):
  """Where the command was run with these flags; it wrote into `out`."""
  folder = tmp_path_factory.mktemp("free-form")
  with pytest.MonkeyPatch.context() as patch:
    open_toy(patch, toy, folder / "cache")
    call(patch, command, folder / "toy", folder / "out", *FLAGS)
  return folder


@pytest.fixture
def record(folder):
  return json.loads((folder / "out" / "free-form-toy-encoder.json").read_text())


def cells_of(text: str) -> list[list[str]]:
  """Cells of the lines of a text that are rows of tables."""
  lines = [line for line in text.splitlines() if line.startswith("|")]
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def percent(share: float) -> str:
  return f"{100 * share:.1f}"


def test_the_command_writes_a_table_numbers_and_a_picture(record, folder):
  names = [f"free-form-toy-encoder.{end}" for end in ("json", "md", "png")]
  assert sorted(path.name for path in (folder / "out").iterdir()) == names
  assert (record["step"], record["seed"], record["start"]) == (7, 0, "encoder")
  assert record["command"].startswith(f"python -m experiments.free_form {folder / 'toy'}")
  assert record["command"].endswith(" ".join(FLAGS))
  fitted = [record[kind]["reconstruction"]["fitted_examples"] for kind in command.PROBES]
  assert fitted == [100, 40, 40]
  assert list(record["results"]) == ["digits", "rotated_digits:35", "affine_digits"]


def test_bounds_rise_and_are_the_sums_of_their_terms(record):
  for result in record["results"].values():
    assert result["examples"] == 12
    bound = result["bound"]
    assert bound["examples_that_did_not_rise"] == 0
    assert 0 < bound["least_rise"] <= bound["after"] - bound["before"]
    for when in ("before", "after"):
      total = sum(term[when] for term in result["terms"].values())
      assert -total == pytest.approx(bound[when], rel=1e-5)  # float32 numbers of size 1,000
    # The posterior comes to look like the image instead of what an untrained encoder gave.
    shares = result["accuracy"]["reconstruction"]
    assert shares["after_alike"] > shares["after"]


def test_the_tables_have_the_numbers_of_the_record(record, folder):
  text = (folder / "out" / "free-form-toy-encoder.md").read_text()
  rows = cells_of(text)
  unmoved, rotated = (record["results"][name] for name in ("digits", "rotated_digits:35"))
  bound = unmoved["bound"]
  terms = [f"{term['before']:.1f} to {term['after']:.1f}" for term in unmoved["terms"].values()]
  assert ["digits", "12", f"{bound['before']:.1f}", f"{bound['after']:.1f}", "0", *terms] in rows
  shares = unmoved["accuracy"]["reconstruction"]
  assert shares["after"] != shares["before"]
  assert ["digits", "reconstruction", *(percent(shares[when]) for when in command.WHEN)] in rows
  every, alike = (percent(rotated["pixels"][extent]) for extent in ("every", "alike"))
  assert ["rotated_digits:35", "raw pixels", every, "", alike, ""] in rows
  assert "affine_digits: " in text  # what its images are


def test_raw_pixels_are_scored_by_a_probe_of_as_many_images(record):

  def pixels_and_labels(name, count):
    split = load_split(load_digits(), name, count)
    return split["image"].reshape(count, -1) / 255, split["label"]

  probe = fit_probe(*pixels_and_labels("train", 40), num_classes=10)
  expected = probe.accuracy(*pixels_and_labels("test", 12))
  assert record["results"]["digits"]["pixels"]["alike"] == pytest.approx(expected)


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


@pytest.mark.parametrize(("name", "first_update"), [("sgd", -0.3), ("adam", -0.1)])
def test_rates_fall_to_zero_over_the_steps(name, first_update):
  """By a cosine: half the rate after half of two steps. Adam divides a gradient by its size."""
  value, gradient = {"x": np.float32(1.0)}, {"x": np.float32(3.0)}
  optimizer = command.make_optimizer(name, 0.1, 2)
  state = optimizer.init(value)
  updates = []
  for _ in range(3):
    update, state = optimizer.update(gradient, state, value)
    updates.append(update["x"])
  np.testing.assert_allclose(updates, [first_update, first_update / 2, 0], atol=1e-6)


def test_lbfgs_searches_its_rates():
  assert isinstance(command.make_optimizer("lbfgs", None, 2), optax.GradientTransformationExtraArgs)
  assert "L-BFGS" in command.describe_optimizer({"optimizer": "lbfgs", "learning_rate": None})


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
