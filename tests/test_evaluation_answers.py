"""The report on a model that classifies by itself, on one whose answers are known."""

import dataclasses
import functools
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import EvalDataset, Split
from scae_jax.evaluation.classification import by_confidence, classify
from scae_jax.evaluation.evaluators import evaluate_answers
from scae_jax.evaluation.examples import choose, one_of_each_class
from scae_jax.evaluation.report import Evaluated, write_reports
from scae_jax.models.system import Encoding
from tests.stand_ins import source_of, stub, texts

COUNT, CLASSES = 11, 4
RNG = np.random.RandomState(0)
# The brightness of column k of an image is the score of class k. All differ, and none is the edge
# of a bin of confidence, 17 / 255, so that rounding decides nothing.
_LEVELS = RNG.permutation([level for level in range(256) if level % 17])[: COUNT * CLASSES]
IMAGES = np.repeat(_LEVELS.reshape(COUNT, 1, CLASSES, 1), 2, axis=1).astype(np.uint8)
LABELS = RNG.randint(0, CLASSES, COUNT).astype(np.int32)
EXAMPLES = {"image": IMAGES, "label": LABELS}
SCORED = EvalDataset("columns", tuple("abcd"), {"test": Split(IMAGES, LABELS)}, ("a note",))
BATCH = functools.partial(evaluation_batch, canvas=CLASSES)
VARIABLES = {3: {"params": {"shift": jnp.int32(0)}}, 4: {"params": {"shift": jnp.int32(1)}}}


class Columns(nn.Module):
  """Scores [b, 4] are the brightest pixels of columns, moved by `shift` classes."""

  @nn.compact
  def __call__(self, batch, *, train):
    shift = self.param("shift", nn.initializers.zeros, (), jnp.int32)
    return jnp.roll(batch["image"].max(axis=(1, 3)), shift, axis=1)


def pictures(variables, batch):
  images = {"image": batch["image"], "reconstruction": 1 - batch["image"]}
  return {"class_reconstructions": images | {"label": batch["label"], "predicted": batch["label"]}}


SYSTEM = stub(
  Columns(),
  metrics=lambda output, batch: {"label_squared": batch["label"] ** 2.0},
  pictures=pictures,
  encoding=lambda output: Encoding(scores=output),
)


def write(
  directory,
  *,
  system=SYSTEM,
  variables=VARIABLES,
  examples=EXAMPLES,
  batch=BATCH,
  scored=SCORED,
  **more,
):
  evaluated = Evaluated(system, variables, step=1200, batch_size=4, **more)
  items = evaluate_answers(evaluated, scored, "test", examples, batch)
  return write_reports(directory, evaluated, items)


def assert_answers(report, expected):
  expected, entries = expected.entries(), dict(report["classification"])
  assert entries.pop("confusion") == expected.pop("confusion")
  assert entries == pytest.approx(expected)  # the device may divide by 255 in its own way


@pytest.mark.usefixtures("not_drawn")
def test_every_figure_of_every_seed(tmp_path, capsys):
  """Of all examples; of some: below."""
  calls = []

  def counting(output):
    calls.append(output.shape)  # runs once a compilation
    return Encoding(scores=output)

  system = dataclasses.replace(SYSTEM, encoding=counting)
  reports = write(tmp_path, system=system)
  assert calls == [(4, CLASSES)]  # for all seeds and batches
  scores = np.float32(IMAGES[:, 0, :, 0]) / 255
  assert list(reports) == [3, 4]
  for seed, shift in ((3, 0), (4, 1)):
    report = reports[seed]
    written = json.loads((tmp_path / f"seed-{seed}" / "metrics.json").read_text())
    assert written == report
    assert source_of(report["scored_on"]) == {
      "dataset": "columns",
      "split": "test",
      "examples": COUNT,
    }
    assert (report["seed"], report["step"], report["max_examples"]) == (seed, 1200, 0)
    assert_answers(report, classify(np.roll(scores, shift, axis=1), LABELS[:, None]))
    assert report["metrics"] == {"label_squared": pytest.approx(np.mean(LABELS**2.0))}
  summary = json.loads((tmp_path / "metrics.json").read_text())
  accuracies = [100 * reports[seed]["classification"]["accuracy"] for seed in (3, 4)]
  assert summary["seeds"] == [3, 4]
  assert summary["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
  assert "| accuracy | " in capsys.readouterr().out


@pytest.mark.usefixtures("not_drawn")
def test_accuracy_on_moved_images_is_told_by_displacement(tmp_path):
  scored = dataclasses.replace(SCORED, name="affine_columns")
  report = write(tmp_path, variables={3: VARIABLES[3]}, scored=scored, max_examples=5)[3]
  (entry,) = report["by_displacement"]  # below 4 pixels
  assert (entry["from"], entry["to"], entry["examples"]) == (0, 4, 5)
  assert entry["accuracy"] == {"accuracy": report["classification"]["accuracy"]}


def test_the_table_and_figures_of_one_seed_show_what_was_measured(tmp_path, not_drawn, capsys):
  history = tmp_path / "metrics.jsonl"
  history.write_text('{"step": 1, "split": "train", "total": 2.0}\n')
  write(tmp_path / "evaluation", variables={4: VARIABLES[4]}, history=history)
  assert [path.name for path in (tmp_path / "evaluation").iterdir()] == ["metrics.json"]
  expected = classify(np.roll(np.float32(IMAGES[:, 0, :, 0]) / 255, 1, axis=1), LABELS[:, None])
  right = np.mean(expected.is_right)
  lines = capsys.readouterr().out.splitlines()
  assert lines[2] == f"| accuracy | {100 * right:.2f} |"
  assert lines[3] == f"| error | {100 * (1 - right):.2f} |"
  assert any(line.startswith("| label squared | ") for line in lines)
  assert any(re.search(r"\b11\b.*\bcolumns test\b.*\b1,200\b", line) for line in lines)
  assert lines[-1] == "Note: a note"
  (drawers,) = not_drawn
  assert set(drawers) == {"class_reconstructions", "confusion", "reliability", "training_curves"}
  (axes,) = drawers["confusion"]().axes
  assert axes.get_title() == f"Accuracy {right:.2%}"
  assert axes.get_xlabel() == "answer"
  counts = {text.get_position(): int(text.get_text()) for text in axes.texts}
  assert all(expected.confusion[row, column] == n for (column, row), n in counts.items())
  above, below = drawers["reliability"]().axes
  assert above.get_title() == f"Expected calibration error {expected.calibration_error:.2%}"
  assert sum(bar.get_height() for bar in below.patches) == pytest.approx(1)
  count, confidence, accuracy = by_confidence(expected.confidence[:, 0], expected.is_right[:, 0])
  dots = np.stack([confidence, accuracy], axis=1)[count > 0]
  np.testing.assert_allclose(above.lines[-1].get_xydata(), dots, rtol=1e-6)
  labels = [axes.get_xlabel() for axes in drawers["class_reconstructions"]().axes]
  drawn_labels = [int(label[0]) for label in labels if label]
  np.testing.assert_array_equal(drawn_labels, LABELS[one_of_each_class(LABELS, 10)])


def test_parents_of_a_coupling_bear_the_names_of_classes(tmp_path, not_drawn):
  def fed(variables, batch):
    shares = jnp.full((1, 2, CLASSES), 1 / CLASSES)
    return {"coupling": {"image": batch["image"][0], "coupling": shares, "agreement": shares}}

  system = dataclasses.replace(SYSTEM, pictures=fed)
  write(tmp_path, system=system, variables={3: VARIABLES[3]})
  figure = not_drawn[0]["coupling"]()
  (bars,) = (axes for axes in figure.axes if axes.get_xlabel() == "parent capsule")
  assert texts(bars.get_xticklabels()) == ["a", "b", "c", "d"]


def overlay(examples, indices):
  """With the label of a partner anywhere in the split."""
  batch = BATCH(examples, indices)
  other = examples["label"][examples["partner"][indices]]
  return batch | {"other_label": other}


def test_pairs_of_labels(tmp_path, not_drawn):
  """Partners are indices into the whole split, of which some examples are scored."""
  partner = np.array([np.flatnonzero(label != LABELS)[0] for label in LABELS])
  examples = EXAMPLES | {"partner": partner}
  reports = write(tmp_path, examples=examples, batch=overlay, max_examples=6)
  rows = choose(COUNT, 6)
  labels = np.stack([LABELS, LABELS[partner]], axis=1)[rows]
  scores = np.float32(IMAGES[rows, 0, :, 0]) / 255
  answers = classify(scores, labels)
  assert_answers(reports[3], answers)
  assert reports[3]["scored_on"]["examples"] == reports[3]["max_examples"] == 6
  assert set(not_drawn[0]) == {"class_reconstructions", "confusion", "reliability"}
  (axes,) = not_drawn[0]["confusion"]().axes
  written = {text.get_position(): float(text.get_text()) for text in axes.texts}
  rows, columns = np.nonzero(answers.confusion)
  assert written == {(c, r): answers.confusion[r, c] for r, c in zip(rows, columns, strict=True)}
  _, below = not_drawn[0]["reliability"]().axes
  # Of twelve answers, two an example.
  count, _, _ = by_confidence(answers.confidence.reshape(-1), answers.is_right.reshape(-1))
  heights = [bar.get_height() for bar in below.patches]
  np.testing.assert_allclose(heights, count[count > 0] / 12)
  summary = json.loads((tmp_path / "metrics.json").read_text())
  names = {"accuracy", "error", "both right", "mean confidence", "expected calibration error"}
  assert set(summary["mean"]) == names | {"label squared"}


def test_what_cannot_be_scored_or_written_is_found_before_the_work(tmp_path):
  with pytest.raises(ValueError, match="max_examples"):
    write(tmp_path / "new", max_examples=-1)
  assert not (tmp_path / "new").exists()
  # That of the second seed too.
  (tmp_path / "seed-4").write_text("")
  calls = []
  system = dataclasses.replace(SYSTEM, encoding=lambda output: calls.append(0))
  with pytest.raises(OSError, match="seed-4"):
    write(tmp_path, system=system)
  assert not calls
