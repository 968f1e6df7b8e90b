"""Commands that measure one run on images: which run is opened, what is written, what is refused.

What equivariance and free-form inference write is tested with what they measure.
"""

import functools
import json
import os
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from configs import digits, probabilistic
from experiments import (
  equivariance,
  findings,
  free_form,
  gradients,
  identifiability,
  routing,
  sample_object,
  template_match,
)
from scae_jax.data.constellations import Scenes
from scae_jax.errors import RunError
from scae_jax.training.step import losses
from tests import tiny
from tests.references import reference_vote
from tests.stand_ins import (
  call,
  labelled,
  noise,
  open_for_commands,
  refusal,
  source_of,
  stub,
  written,
)
from tests.test_experiments_template_match import LINES, RING, SEVEN
from tests.test_models_generative_pictures import (
  CANVAS,
  OBJECTS,
  PARTS,
  SYSTEM,
  generative,
  variables,
)

__all__ = ["generative", "variables"]  # fixtures: tiny probabilistic capsules

NUM_IMAGES = 5
TEMPLATES = np.stack([SEVEN, RING, SEVEN[:, ::-1], np.zeros_like(RING), LINES])
SCENES = Scenes(("square",), 0.5, 0.0, 1.0, 1.0, 2.0, 0.0, 0)


def test_a_record_a_text_and_a_figure_are_written(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["/some/where/it.py", "runs/a b", "--split=test"])
  command = findings.command_line("it")
  assert command == "python -m experiments.it 'runs/a b' --split=test"
  folder = tmp_path / "new"
  figures, head = {"share": 0.5}, {"command": command}
  result = findings.Findings(figures, ["First.", "Second."], Figure)
  findings.write_findings(folder, "it", head, result)
  record = json.loads((folder / "it.json").read_text())
  assert {**head, **figures}.items() <= record.items()
  assert {"date", "versions", "hardware"} <= set(record)
  text = (folder / "it.md").read_text()
  assert text.startswith(f"First.\n\nSecond.\n\nCommand: `{command}`.\n\nHardware: ")
  assert text.endswith(f"\n\nMeasured {record['date'][:10]}.\n")
  assert f"{os.cpu_count()} x " in text
  assert (folder / "it.png").read_bytes().startswith(b"\x89PNG")
  assert capsys.readouterr().out == f"{text}\n"
  findings.write_findings(folder, "bare", head, findings.Findings(figures, ["First."]))
  names = sorted(path.name for path in folder.iterdir())
  assert names == ["bare.json", "bare.md", "it.json", "it.md", "it.png"]


@pytest.mark.parametrize(
  ("flags", "which", "folder"),
  [((), "latest", ""), (("--step=30", "--data_dir=elsewhere"), "30", "elsewhere")],
)
def test_the_run_is_opened_as_the_command_line_says(monkeypatch, flags, which, folder):
  kept, opened, changed = [], [], []
  monkeypatch.setattr(findings, "keep_compiled", kept.append)
  monkeypatch.setattr(findings, "load_settings", lambda _, changes: changed.append(changes))
  monkeypatch.setattr(findings, "open_run", lambda *arguments: opened.append(arguments))
  options = findings.run_parser("What it does.").parse_args(["runs/toy", *flags])
  findings.open_named(options)
  ((workdir, result, _),) = opened
  assert (workdir, result) == (pathlib.Path("runs/toy"), which)
  assert changed == [{"data.dir": folder} if folder else {}]
  assert kept == [""]


def pictures(variables, batch):
  templates = jnp.asarray(TEMPLATES) * variables["params"]["strength"]
  return {"templates": {"templates": templates}, "never drawn": {}}


DRAWS = stub(pictures=pictures)


@pytest.mark.parametrize(
  ("command", "stand_in", "flag", "message"),
  [
    (routing, stub(), "--split=x", "'x'"),
    (routing, stub(), "--max_examples=-1", "max_examples"),
    (routing, stub(), "--scenes", "images"),
    (routing, stub(), "--missing", "step 3"),
    (routing, stub(), "", "parts"),
    (equivariance, stub(), "", "poses"),
    (identifiability, stub(), "", "templates"),
    (identifiability, DRAWS, "", "0 of 5 templates"),
    (free_form, stub(), "", "free_form"),
    (gradients, stub(), "", "SCAE"),
    (sample_object, stub(), "", "'tests.toy_system'"),
  ],
)
def test_what_cannot_be_measured_is_refused_in_one_message(
  monkeypatch, tmp_path, capsys, command, stand_in, flag, message
):
  dataset = SCENES if flag == "--scenes" else noise(NUM_IMAGES)
  open_for_commands(monkeypatch, stand_in, dataset, {0: {"params": {"strength": jnp.float32(0)}}})
  if flag == "--missing":

    def missing(*arguments):
      raise RunError("there is no checkpoint of step 3")

    monkeypatch.setattr(findings, "open_run", missing)
  out = tmp_path / "out"
  rest = ["--object=0", f"--out={out / 'it.png'}"] if command is sample_object else [out]
  flags = [flag] if "=" in flag else []
  assert message in refusal(capsys, monkeypatch, command, tmp_path / "run", *rest, *flags)
  assert not out.exists()


def test_identifiability_writes_the_number_of_each_seed(monkeypatch, tmp_path, capsys):
  strengths = [{"params": {"strength": jnp.float32(strength)}} for strength in (1.0, 0.5)]
  open_for_commands(monkeypatch, DRAWS, noise(12), dict(enumerate(strengths)))
  # Mirror images match at the start; how far the steps get is tested with the matches.
  match_shortly = functools.partial(template_match.match_errors, num_steps=20)
  monkeypatch.setattr(template_match, "match_errors", match_shortly)
  out = tmp_path / "out"
  call(monkeypatch, identifiability, tmp_path / "run", out)
  ends = ("json", "md")
  stems = [f"identifiability-run-seed-{seed}" for seed in (0, 1)]
  assert {path.name for path in out.iterdir()} == {f"{s}.{end}" for s in stems for end in ends}
  first, text = written(capsys, out, stems[0])
  second = json.loads((out / f"{stems[1]}.json").read_text())
  assert (first["step"], first["seed"], second["seed"]) == (7, 0, 1)
  assert first["workdir"] == str(tmp_path / "run")
  assert first["matched"] == 0.5  # mirror images; see test_experiments_template_match.py
  # Errors are relative: half as bright is the same. Adam's epsilon knows the difference.
  assert second["mean_error"] == pytest.approx(first["mean_error"], abs=1e-3)
  assert f"| 4 of 5 | {first['mean_error']:.3f} | 50% |" in text
  assert "| 0 | 2 | 0.000 |" in text
  assert re.search(r"\b1 of 5 templates\b.* 3\.", text)


@pytest.fixture
def opened(monkeypatch, variables):
  """Commands find tiny probabilistic capsules of seeds 3 and 4."""
  config = probabilistic.get_config()
  config.data.canvas = CANVAS
  config.evaluation.batch_size = 2  # and one image left
  seeds = dict.fromkeys((3, 4), variables)
  open_for_commands(monkeypatch, SYSTEM, noise(NUM_IMAGES), seeds, config)


@pytest.mark.usefixtures("opened")
def test_routing_writes_what_varies(monkeypatch, tmp_path, capsys, generative):
  measured = []
  measure = routing.measure_routing
  monkeypatch.setattr(
    routing, "measure_routing", lambda **arrays: measured.append(arrays) or measure(**arrays)
  )
  call(monkeypatch, routing, tmp_path / "run", tmp_path / "out")
  # The image that fills the last batch is left out.
  assert {len(array) for array in measured[0].values()} == {NUM_IMAGES}
  record, text = written(capsys, tmp_path / "out", "routing-run-seed-3")
  assert (record["step"], record["seed"]) == (7, 3)
  assert source_of(record["scored_on"]) == {
    "dataset": "noise",
    "split": "test",
    "examples": NUM_IMAGES,
  }
  assert [len(record["parts"]), len(record["objects"])] == [PARTS, OBJECTS]
  shares = [5 * part["on"] for part in record["parts"]]
  np.testing.assert_allclose(shares, np.round(shares), atol=1e-6)
  assert any(shares)
  assert sum(entry["wins"] for entry in record["objects"]) <= sum(shares) / 5 + 1e-6
  expected = np.exp(generative.relations()[0].affinity_logits).max(axis=0)
  np.testing.assert_allclose(record["affinities"], expected, rtol=1e-5)
  assert f"of {PARTS} parts" in text
  named = sum(entry["wins"] >= 0.01 or entry["on"] > 0 for entry in record["objects"])
  assert text.count("\n| ") == 2 + PARTS + named


def test_statistics_of_gradients():
  # Two batches whose means are (2, 0), (0, 3) and (-1, -1).
  first = {"a": [1.0, 0.0], "towards x": [0.0, 4.0], "b": [-1.0, -1.0]}
  second = {"a": [3.0, 0.0], "towards x": [0.0, 2.0], "b": [-1.0, -1.0]}
  result = gradients.statistics({term: np.array([first[term], second[term]]) for term in first})
  assert result["a"] == pytest.approx({"norm": 2, "noise": 2**0.5, "towards x": 0})
  assert result["b"] == pytest.approx({"norm": 2**0.5, "noise": 0, "towards x": -(0.5**0.5)})
  assert result["towards x"] == pytest.approx({"norm": 3, "noise": 2**0.5, "towards x": 1})


def test_gradients_are_of_the_terms_that_training_has(monkeypatch, tmp_path, capsys):
  config = digits.get_config()
  config.data.canvas, config.train.batch_size = tiny.CANVAS, 4
  system, batch = tiny.tiny_system(), tiny.tiny_batch()
  variables = tiny.random_variables(system.module, batch, train=False)
  images = noise(11).splits["test"].images[:, : tiny.CANVAS, : tiny.CANVAS]
  # Two batches, and three images left.
  dataset = labelled("noise", images, np.arange(11) % 3)
  run = open_for_commands(monkeypatch, system, dataset, {0: variables}, config)

  params, key = variables["params"], jax.random.key(0)
  terms = tiny.compiled(gradients.terms_of(run))(params, batch, key)
  in_training = functools.partial(losses, system, step=0)
  _, (expected, output) = tiny.compiled(in_training)(params, batch=batch, noise_key=key)
  for name, probe in gradients.PROBES.items():
    assert terms[f"towards {name}"] == pytest.approx(float(expected.pop(probe)), rel=1e-5)
  for name, value in expected.items():
    weighted = float(system.loss_weights[name] * value)
    assert terms[name] == pytest.approx(weighted, rel=1e-5)
  excess = terms["prior_between"] - terms["prior_between, unbiased"]
  variance = np.asarray(output.objects.presence).var(axis=0, ddof=1).mean()
  weight = system.loss_weights["prior_between"]
  assert excess == pytest.approx(weight * len(batch["image"]) * float(variance), rel=1e-4)
  assert terms["prior_between, excess"] == pytest.approx(float(excess))

  call(monkeypatch, gradients, tmp_path / "run", tmp_path / "out")
  record, text = written(capsys, tmp_path / "out", "gradients-run")
  assert record["batch_size"] == 4
  assert set(record["objects"]) == set(record["parts"]) == set(terms)
  assert record["objects"]["image"] == {"norm": 0, "noise": 0} | dict.fromkeys(
    ("towards prior", "towards posterior"), 0
  )
  assert record["parts"]["image"]["norm"] > 0
  # Batches differ by images and by noise.
  assert all(record["parts"][name]["noise"] > 0 for name in terms)
  assert "2 batches of 4 images" in text
  small_set = labelled("noise", images[:7], np.arange(7) % 3)
  open_for_commands(monkeypatch, system, small_set, {0: variables}, config)
  arguments = (tmp_path / "run", tmp_path / "few")
  assert re.search(r"\b4\b.* 7\b", refusal(capsys, monkeypatch, gradients, *arguments))


@pytest.mark.usefixtures("opened")
def test_sample_object_draws_the_object_at_its_pose(monkeypatch, tmp_path, capsys, generative):
  drawn_samples = []
  draw = sample_object.FIGURES["prior_samples"]
  monkeypatch.setitem(
    sample_object.FIGURES, "prior_samples", lambda *fed: drawn_samples.append(fed) or draw(*fed)
  )
  out = tmp_path / "new" / "object.png"
  flags = ("--turn=90", "--scale=0.8", "--shift", "0.3", "-0.1", "--samples=2", f"--out={out}")
  call(monkeypatch, sample_object, "runs/tiny", "--object=1", *flags)
  assert out.stat().st_size > 1000
  assert str(out) in capsys.readouterr().out
  ((drawings, title),) = drawn_samples
  assert drawings.shape == (3, CANVAS, CANVAS, 1)
  for title_part in ("tiny, step 7: object 1", "90°", "× 0.8", "right 0.3, down -0.1", "samples"):
    assert title_part in title
  # Where its parts are expected: a quarter counter-clockwise, then the shift.
  relations = generative.relations()[0]
  pose = np.array([[0, 0.8, 0.3], [-0.8, 0, -0.1]])
  places = [reference_vote(pose, offset)[:, 2] for offset in relations.offsets[1]]
  seen = [place for place in places if np.abs(place).max() < 0.8]
  assert seen
  for x, y in seen:
    column, row = (int((place + 1) / 2 * CANVAS) for place in (x, y))
    assert drawings[0, row - 2 : row + 3, column - 2 : column + 3].max() > 0.02
  assert np.abs(drawings[1] - drawings[2]).max() > 0.05  # samples differ


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--object=2",), "--object"),
    (("--object=-1",), "--object"),
    (("--object=0", "--scale=0"), "--scale"),
    (("--object=0", "--turn=nan"), "--turn"),
    (("--object=0", "--samples=100"), "--samples"),
    (("--object=0", "--seed=0"), "--seed"),
    (("--object=0", "--out=object.jpg"), "--out"),
  ],
)
def test_sample_object_refuses_in_one_message(monkeypatch, tmp_path, capsys, flags, message):
  arguments = ("runs/tiny", f"--out={tmp_path / 'object.png'}", *flags)
  assert message in refusal(capsys, monkeypatch, sample_object, *arguments)
  assert not list(tmp_path.iterdir())
