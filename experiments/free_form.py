"""Bounds and linear probes of a trained model before and after free-form inference.

    python -m experiments.free_form runs/probabilistic-digits results/probabilistic

Each test image's posterior is optimised on its own bound, from the encoder's or the prior
(`scae_jax/evaluation/free_form.py`); the model is fixed. A linear classifier, fitted to the
encoder's posteriors of the training images, classifies the posteriors before and after. Numbers
that the bound hardly depends on end where no encoder puts them, so two more classifiers are fitted
alike, to posteriors of training images that are inferred in the same way, before the steps and
after. Beside them stands a classifier of the images' pixels. Writes
`free-form-<workdir>-<start>.md`, `.json` and `.png` into the folder, of a run with several seeds
`free-form-<workdir>-seed-<seed>-<start>` of each. Images are the test split as it is, rotated by 35
degrees and under affNIST's maps, or what `--dataset` names, which may be given several times.
"""

import argparse
import functools
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from experiments.findings import write_findings
from experiments.one_run import each_seed, open_named, run_parser
from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import Dataset, EvalDataset
from scae_jax.evaluation.collect import feature_collector
from scae_jax.evaluation.examples import check_transfer, load_split, one_of_each_class
from scae_jax.evaluation.free_form import (
  STARTS,
  FreeInference,
  infer_split,
  make_inference,
)
from scae_jax.evaluation.probes import Fit, fit_probe
from scae_jax.evaluation.provenance import measured_with
from scae_jax.evaluation.scores import MAX_PIXEL_EXAMPLES, PIXELS, pixel_features
from scae_jax.evaluation.table import markdown
from scae_jax.figures import FIGURES
from scae_jax.figures.reconstructions import MAX_EXAMPLES
from scae_jax.models.system import FreeForm
from scae_jax.training.build import Run
from scae_jax.training.errors import RunError, exit_with_message, explained
from scae_jax.training.options import DataOptions
from scae_jax.training.reporting import load_scored_set

SPLIT = "test"
WHEN = ("before", "after", "before_alike", "after_alike")
# Learning rates where the command line has none; L-BFGS searches along each step for how far to go.
LEARNING_RATES = {"adam": 0.01, "sgd": 1e-4, "lbfgs": None}
Probes = dict[str, Fit]  # a linear classifier of each kind of readings


def fit_readings(
  readings: Mapping[str, np.ndarray | jax.Array], labels: np.ndarray, num_classes: int
) -> Probes:
  """Classifiers of readings [n, d] of training images."""
  return {
    name: fit_probe(np.asarray(values), labels, num_classes=num_classes, name=name)
    for name, values in readings.items()
  }


def make_stepper(
  name: str, learning_rate: float | None, num_steps: int
) -> optax.GradientTransformation:
  """The optimiser of one name of `LEARNING_RATES`; its rate falls to 0 under a cosine."""
  if name == "lbfgs":
    if learning_rate is not None:
      raise RunError(
        "--optimizer=lbfgs searches along each step for how far to go; leave --learning_rate out."
      )
    return optax.lbfgs()
  if learning_rate is None or not learning_rate > 0:
    raise RunError(f"--learning_rate must be above 0; it is {learning_rate}.")
  make = {"adam": optax.adam, "sgd": optax.sgd}[name]
  return make(optax.cosine_decay_schedule(learning_rate, max(num_steps, 1)))


def described(record: Mapping[str, Any]) -> str:
  """The optimiser in words."""
  name = {"adam": "Adam", "sgd": "gradient descent", "lbfgs": "L-BFGS"}[record["optimizer"]]
  if record["learning_rate"] is None:
    return f"{name} with a line search"
  return f"{name}, learning rate {record['learning_rate']:g} under a cosine"


def score(
  found: FreeInference, labels: np.ndarray, probes: Probes, alike: tuple[Probes, Probes]
) -> dict[str, Any]:
  """Bounds, their terms and accuracies before and after, for the JSON file; `before_alike` and
  `after_alike` are by the classifiers that were fitted to posteriors inferred alike."""
  both = {"before": found.before, "after": found.after}
  low, high = (np.asarray(one.bound, np.float64) for one in both.values())

  def shares(name: str, fitted: Mapping[str, Probes]) -> dict[str, float]:
    return {
      when: probes[name].accuracy(np.asarray(both[when.split("_")[0]].readings[name]), labels)
      for when, probes in fitted.items()
    }

  fitted: dict[str, Probes] = dict(zip(WHEN, (probes, probes, *alike), strict=True))
  return {
    "examples": len(labels),
    "bound": {
      "before": float(low.mean()),
      "after": float(high.mean()),
      "least_rise": float((high - low).min()),
      "examples_that_did_not_rise": int(np.sum(high <= low)),
    },
    "terms": {
      name: {when: float(np.mean(one.terms[name])) for when, one in both.items()}
      for name in found.before.terms
    },
    "accuracy": {name: shares(name, fitted) for name in probes},
  }


def pictures(
  free_form: FreeForm,
  variables: Any,
  split: Mapping[str, np.ndarray],
  found: FreeInference,
  canvas: int,
  title: str,
) -> Callable[[], Figure]:
  """Drawer of some of the images beside the pictures of their posteriors before and after."""
  shown = one_of_each_class(split["label"], MAX_EXAMPLES)
  chosen = {name: jnp.asarray(values[shown]) for name, values in split.items()}
  batch = evaluation_batch(chosen, jnp.arange(len(shown)), canvas=canvas)
  draw = jax.jit(free_form.draw)

  def drawn_from(posterior: Any) -> np.ndarray:
    return np.asarray(draw(variables, jax.tree.map(lambda leaf: leaf[shown], posterior), batch))

  return functools.partial(
    FIGURES["free_form"],
    image=np.asarray(batch["image"]),
    before=drawn_from(found.before.posterior),
    after=drawn_from(found.after.posterior),
    bound_before=np.asarray(found.before.bound)[shown],
    bound_after=np.asarray(found.after.bound)[shown],
    title=title,
  )


def fits(probes: Probes) -> dict[str, dict[str, Any]]:
  """What the JSON file says of the classifiers."""
  return {
    name: {
      "fitted_examples": probe.num_examples,
      "train_accuracy": probe.train_accuracy,
      "converged": probe.converged,
    }
    for name, probe in probes.items()
  }


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Markdown: bounds and their terms in nats, a row a data set; then accuracies in percent, a row
  for each kind of readings and for pixels of each data set."""
  terms = list(next(iter(results.values()))["terms"])
  rows = [["", "examples", "bound before", "after", "did not rise", *terms]]
  for name, result in results.items():
    bound = result["bound"]
    cells = [name, f"{result['examples']:,}", f"{bound['before']:.1f}", f"{bound['after']:.1f}"]
    cells.append(f"{bound['examples_that_did_not_rise']:,}")
    for term in terms:
      low, high = (result["terms"][term][when] for when in ("before", "after"))
      cells.append(f"{low:.1f} to {high:.1f}")
    rows.append(cells)
  scores = [["", "LIN-PRED", *(when.replace("_alike", ", fitted alike") for when in WHEN)]]
  for name, result in results.items():
    for kind, shares in result["accuracy"].items():
      scores.append([name, kind, *(f"{100 * shares[when]:.1f}" for when in WHEN)])
    every, alike = (f"{100 * result['pixels'][kind]:.1f}" for kind in ("every", "alike"))
    scores.append([name, PIXELS, every, "", alike, ""])
  return f"{markdown(rows)}\n\n{markdown(scores)}"


def remarks(record: Mapping[str, Any]) -> list[str]:
  """What the table was measured on."""
  kinds = ("probes", "probes_before_alike", "probes_alike")
  fitted, _, alike = (
    max((one["fitted_examples"] for one in record[kind].values()), default=0) for kind in kinds
  )
  unsettled = [name for kind in kinds for name, one in record[kind].items() if not one["converged"]]
  cut = f" Cut before it converged: {', '.join(unsettled)}." if unsettled else ""
  return [
    f"Bounds in nats, mean over examples; each is the mean of {record['num_samples']} estimates, by"
    " the same random numbers before and after, and minus the sum of its terms. Accuracies in"
    f" percent, of linear classifiers fitted to the encoder's readings of {fitted:,} training"
    f" images, or, where it says fitted alike, to posteriors of {alike:,} training images that were"
    f" inferred in the same way, before the steps or after. Of {PIXELS}: fitted to those of the"
    f" same images, {MAX_PIXEL_EXAMPLES:,} at most.{cut}",
    f"Free-form inference from the {record['start']}: {record['num_steps']:,} steps of"
    f" {described(record)}. Step {record['step']:,}, seed {record['seed']}.",
    *record["notes"],
  ]


def options_of_command() -> argparse.Namespace:
  """What the command line says."""
  parser = run_parser(__doc__)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--dataset", action="append", help="what to score, see data/transfer.py")
  parser.add_argument("--start", choices=STARTS, default="encoder")
  parser.add_argument("--num_steps", type=int, default=1000)
  parser.add_argument("--optimizer", choices=LEARNING_RATES, default="adam")
  parser.add_argument(
    "--learning_rate", type=float, help="at the start; if not 0.01 of adam, 1e-4 of sgd"
  )
  parser.add_argument("--num_samples", type=int, default=100, help="of the bounds reported")
  parser.add_argument("--max_examples", type=int, default=0, help="of each set; 0 is all")
  parser.add_argument(
    "--train_examples", type=int, default=1000, help="inferred for classifiers; 0 is all"
  )
  parser.add_argument("--batch_size", type=int, default=1000, help="examples at once")
  options = parser.parse_args()
  if options.learning_rate is None:
    options.learning_rate = LEARNING_RATES[options.optimizer]
  return options


def main() -> None:
  """Infers, scores, writes, prints and draws."""
  options = options_of_command()
  with exit_with_message(), explained():
    run = open_named(options)
    if run.system.free_form is None or not isinstance(run.dataset, Dataset):
      raise RunError(
        "free-form inference takes a run on images whose system has a `free_form`; this one has"
        " none. Name a run of system 'probabilistic'."
      )
    optimizer = make_stepper(options.optimizer, options.learning_rate, options.num_steps)
    own = run.dataset.name
    sets = [
      run.dataset if name == own else load_scored_set(run, name, options.data_dir)
      for name in options.dataset or [own, f"rotated_{own}:35", f"affine_{own}"]
    ]
    options.folder.mkdir(parents=True, exist_ok=True)
    for stem, variables, head in each_seed("free-form", run, options):
      found, draw = infer_sets(run, run.system.free_form, optimizer, variables, sets, options)
      record = {**head, **found, **measured_with()}
      paragraphs = [table(record["results"]), *remarks(record)]
      write_findings(options.folder, f"{stem}-{options.start}", record, paragraphs, draw)


def infer_sets(
  run: Run,
  free_form: FreeForm,
  optimizer: optax.GradientTransformation,
  variables: Any,
  sets: list[EvalDataset],
  options: argparse.Namespace,
) -> tuple[dict[str, Any], Callable[[], Figure]]:
  """The record of one seed, and the drawer of its picture: of the first set that is rotated, or of
  the first."""
  dataset, settings = run.dataset, run.settings
  assert isinstance(settings.data, DataOptions)  # of images
  assert isinstance(dataset, Dataset)
  canvas, limit = settings.data.canvas, settings.evaluation.max_examples
  infer = make_inference(
    free_form,
    optimizer,
    num_steps=options.num_steps,
    start=options.start,
    num_samples=options.num_samples,
  )
  sizes = {"canvas": canvas, "batch_size": options.batch_size}
  splits = []
  for scored in sets:
    check_transfer(dataset, scored, canvas)
    splits.append(load_split(scored, SPLIT, options.max_examples))
  # Training images as they are: all that the report fits to, and those inferred as test images are.
  train = {
    "every": load_split(dataset, "train", limit),
    "alike": load_split(dataset, "train", options.train_examples),
  }
  collect = feature_collector(run.system, canvas=canvas, batch_size=settings.evaluation.batch_size)
  inferred = infer_split(infer, variables, train["alike"], **sizes)
  probes, before_alike, after_alike = (
    fit_readings(readings, train[which]["label"], dataset.num_classes)
    for readings, which in (
      (collect(variables, train["every"])["readings"], "every"),
      (inferred.before.readings, "alike"),
      (inferred.after.readings, "alike"),
    )
  )
  pictured = next((one for one in sets if one.name.startswith("rotated_")), sets[0])
  results, notes, drawers = {}, [], []
  for scored, split in zip(sets, splits, strict=True):
    began = time.perf_counter()
    found = infer_split(infer, variables, split, **sizes)
    seconds = time.perf_counter() - began
    results[scored.name] = {
      **score(found, split["label"], probes, (before_alike, after_alike)),
      "pixels": {
        which: pixel_accuracy(images, split, dataset.num_classes) for which, images in train.items()
      },
      "seconds": seconds,  # with compilation, where the batch is of a new size
    }
    notes += scored.notes
    print(f"{scored.name}: {len(split['label']):,} examples in {seconds:.1f} s", flush=True)
    if scored is pictured:
      title = f"Free-form inference from the {options.start}: {scored.name}, step {run.step:,}"
      drawers.append(pictures(free_form, variables, split, found, canvas, title))
  flags = ("start", "num_steps", "optimizer", "learning_rate", "num_samples", "max_examples")
  record = {
    "split": SPLIT,
    **{flag: getattr(options, flag) for flag in (*flags, "batch_size")},
    "probes": fits(probes),
    "probes_before_alike": fits(before_alike),
    "probes_alike": fits(after_alike),
    "results": results,
    "notes": notes,
  }
  return record, drawers[0]


def pixel_accuracy(
  train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray], num_classes: int
) -> float:
  """Share of test images that a linear classifier of their pixels tells; see `pixel_features`."""
  fitted, scored = pixel_features(train, test)
  return fit_probe(*fitted, num_classes=num_classes, name=PIXELS).accuracy(*scored)


if __name__ == "__main__":
  main()
