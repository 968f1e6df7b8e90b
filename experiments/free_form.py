"""Bounds and linear probes of a trained model before and after free-form inference.

    python -m experiments.free_form runs/probabilistic-digits results/probabilistic

Each test image's posterior is optimised by its own bound, starting from the encoder's posterior or
the prior (`scae_jax/evaluation/free_form.py`); the model is fixed. A linear classifier, fitted to
the encoder's posteriors of the training images, classifies the posteriors before and after. Two
more are fitted to free-form posteriors of training images, before and after the steps, and one to
pixels. Writes `free-form-<workdir>-<start>.md`, `.json` and `.png` into the folder; if a run has
several seeds, `free-form-<workdir>-seed-<seed>-<start>` for each. Images are the test split as it
is, rotated by 35 degrees and under affNIST's maps, or the sets of `--dataset`, which may be
repeated.
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

from experiments.findings import (
  Findings,
  each_seed,
  images_of,
  open_named,
  run_parser,
  write_findings,
)
from scae_jax.data.batches import evaluation_batch
from scae_jax.data.dataset import EvalDataset
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.checks import DIVERGED, check_finite
from scae_jax.evaluation.encode import encode_dataset, in_batches
from scae_jax.evaluation.examples import check_transfer, load_split, one_of_each_class
from scae_jax.evaluation.free_form import STARTS, FreeInference, Infer, make_inference
from scae_jax.evaluation.probes import Fit, fit_probe
from scae_jax.evaluation.scores import MAX_PIXEL_EXAMPLES, PIXELS, pixel_features
from scae_jax.evaluation.tables import table
from scae_jax.figures import FIGURES
from scae_jax.figures.reconstructions import MAX_EXAMPLES
from scae_jax.models.system import FreeForm, System
from scae_jax.training.reporting import load_scored_set
from scae_jax.training.run import Run
from scae_jax.waiting import waiting

SPLIT = "test"
# Keys of classifiers in the record: fitted to the encoder's posteriors of all training images, and
# to free-form posteriors of some training images, before and after the steps.
PROBES = ("probes", "probes_before_alike", "probes_alike")
# Columns of accuracies: the classified posteriors and the classifiers.
WHEN = {
  "before": ("before", "probes"),
  "after": ("after", "probes"),
  "before_alike": ("before", "probes_before_alike"),
  "after_alike": ("after", "probes_alike"),
}
# Name in words, constructor, default learning rate. L-BFGS finds the length of each step by a line
# search.
OPTIMIZERS = {
  "adam": ("Adam", optax.adam, 0.01),
  "sgd": ("gradient descent", optax.sgd, 1e-4),
  "lbfgs": ("L-BFGS", optax.lbfgs, None),
}
Probes = Mapping[str, Fit]  # a linear classifier of each kind of probe features


def make_optimizer(
  name: str, learning_rate: float | None, num_steps: int
) -> optax.GradientTransformation:
  """The optimiser of a name of `OPTIMIZERS`; its learning rate falls to 0 along a cosine."""
  _, make, default = OPTIMIZERS[name]
  if default is None:
    if learning_rate is not None:
      raise RunError(
        "--optimizer=lbfgs finds its step lengths by a line search; leave --learning_rate out."
      )
    return make()
  if learning_rate is None or not learning_rate > 0:
    raise RunError(f"--learning_rate must be above 0; it is {learning_rate}.")
  return make(optax.cosine_decay_schedule(learning_rate, max(num_steps, 1)))


def describe_optimizer(record: Mapping[str, Any]) -> str:
  """Describes the optimiser of a record in words."""
  rate = record["learning_rate"]
  how = f", learning rate {rate:g} under a cosine" if rate else " with a line search"
  return f"{OPTIMIZERS[record['optimizer']][0]}{how}"


def infer_split(
  infer: Infer, variables: Any, split: Mapping[str, np.ndarray], *, canvas: int, batch_size: int
) -> FreeInference:
  """Free-form inference of every example of a split, as NumPy arrays.

  Raises ValueError for a batch size below one, and for numbers that are not finite.
  """
  count = len(split["label"])

  def infer_rows(rows: np.ndarray) -> FreeInference:
    return infer(variables, evaluation_batch(split, rows, canvas=canvas), jnp.asarray(rows))

  with waiting(f"inferring {count:,} examples", count) as advance:
    inference = in_batches(infer_rows, count, min(batch_size, count), advance)
  for when, inferred, remedy in (
    ("before", inference.before, DIVERGED),
    ("after", inference.after, "Lower the learning rate."),
  ):
    # Terms are listed in the order of their computation: the first is the cause of the others.
    terms = [name for name, term in inferred.terms.items() if not np.isfinite(term).all()]
    values = {f"the bound ({', '.join(terms)})": np.stack(list(inferred.terms.values()), axis=1)}
    values |= {
      f"the probe feature '{name}'": np.asarray(x) for name, x in inferred.probe_features.items()
    }
    for name, array in values.items():
      check_finite(f"Free-form inference: {name} {when} the steps", array, remedy)
  return inference


def score(
  inference: FreeInference, labels: np.ndarray, probes: Mapping[str, Probes]
) -> dict[str, Any]:
  """Bounds, their terms and accuracies before and after, for the JSON file."""
  inferred_by_time = {"before": inference.before, "after": inference.after}
  bound_before, bound_after = (
    np.asarray(inferred.bound, np.float64) for inferred in inferred_by_time.values()
  )
  return {
    "examples": len(labels),
    "bound": {
      "before": float(bound_before.mean()),
      "after": float(bound_after.mean()),
      "least_rise": float((bound_after - bound_before).min()),
      "examples_that_did_not_rise": int(np.sum(bound_after <= bound_before)),
    },
    "terms": {
      name: {
        when: float(np.mean(inferred.terms[name])) for when, inferred in inferred_by_time.items()
      }
      for name in inference.before.terms
    },
    "accuracy": {
      name: {
        column: probes[probe_kind][name].accuracy(
          np.asarray(inferred_by_time[when].probe_features[name]), labels
        )
        for column, (when, probe_kind) in WHEN.items()
      }
      for name in probes["probes"]
    },
  }


def pictures(
  system: System,
  free_form: FreeForm,
  variables: Any,
  split: Mapping[str, np.ndarray],
  inference: FreeInference,
  canvas: int,
  title: str,
) -> Callable[[], Figure]:
  """A drawer of some images and the pictures of their posteriors before and after."""
  rows = one_of_each_class(split["label"], MAX_EXAMPLES)
  chosen = {name: jnp.asarray(values[rows]) for name, values in split.items()}
  batch = evaluation_batch(chosen, jnp.arange(len(rows)), canvas=canvas)
  drawn = {}
  encode, draw_parts = free_form.encoding, system.draws["parts"]
  draw = jax.jit(
    lambda posterior: draw_parts(variables, encode(variables, posterior), jnp.int32(-1), canvas)
  )
  for when, inferred in (("before", inference.before), ("after", inference.after)):
    posterior = jax.tree.map(lambda leaf: leaf[rows], inferred.posterior)
    drawn[when] = np.asarray(draw(posterior))
    drawn[f"bound_{when}"] = np.asarray(inferred.bound)[rows]
  image = np.asarray(batch["image"])
  return functools.partial(FIGURES["free_form"], image=image, **drawn, title=title)


def tables(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Markdown: a table of bounds and their terms in nats, and one of accuracies in percent.

  The first has a row for each data set, the second one for each kind of probe features
  and for pixels.
  """
  terms = list(next(iter(results.values()))["terms"])
  bound_columns = {"": "", "examples": "", "bound before": ".1f", "after": ".1f"}
  bound_columns |= dict.fromkeys(("did not rise", *terms), "")
  score_columns = {"": "", "LIN-PRED": ""}
  score_columns |= {when.replace("_alike", ", fitted alike"): ".1f" for when in WHEN}
  bounds, scores = [], []
  for name, result in results.items():
    bound, means = result["bound"], result["terms"]
    cells = [result["examples"], bound["before"], bound["after"]]
    cells.append(bound["examples_that_did_not_rise"])
    cells += [f"{means[term]['before']:.1f} to {means[term]['after']:.1f}" for term in terms]
    bounds.append([name, *cells])
    for kind, shares in result["accuracy"].items():
      scores.append([name, kind, *(100 * shares[when] for when in WHEN)])
    every, alike = (100 * result["pixels"][kind] for kind in ("every", "alike"))
    scores.append([name, PIXELS, every, None, alike, None])
  return f"{table(bound_columns, bounds)}\n\n{table(score_columns, scores)}"


def remarks(record: Mapping[str, Any]) -> list[str]:
  """Sentences on how the tables were measured."""
  fitted, _, alike = (
    max((probe["fitted_examples"] for probe in record[kind].values()), default=0) for kind in PROBES
  )
  fits = [(name, probe) for kind in PROBES for name, probe in record[kind].items()]
  unconverged = [name for name, probe in fits if not probe["converged"]]
  note = f" Cut before it converged: {', '.join(unconverged)}." if unconverged else ""
  return [
    f"Bounds in nats, mean over examples; each is the mean of {record['num_samples']} estimates, by"
    " the same random numbers before and after, and minus the sum of its terms. Accuracies in"
    f" percent, of linear classifiers fitted to the encoder's readings of {fitted:,} training"
    f" images, or, where it says fitted alike, to posteriors of {alike:,} training images that were"
    f" inferred in the same way, before the steps or after. Of {PIXELS}: fitted to those of the"
    f" same images, {MAX_PIXEL_EXAMPLES:,} at most.{note}",
    f"Free-form inference from the {record['start']}: {record['num_steps']:,} steps of"
    f" {describe_optimizer(record)}. Step {record['step']:,}, seed {record['seed']}.",
    *record["notes"],
  ]


def main() -> None:
  """Infers, scores, writes, prints and draws."""
  parser = run_parser(__doc__)
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--dataset", action="append", help="what to score, see data/transfer.py")
  parser.add_argument("--start", choices=STARTS, default="encoder")
  parser.add_argument("--num_steps", type=int, default=1000)
  parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
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
    options.learning_rate = OPTIMIZERS[options.optimizer][2]
  with exit_with_message(), as_run_errors():
    run = open_named(options)
    dataset, _, _ = images_of(run)
    if run.system.free_form is None:
      raise RunError(
        "free-form inference takes a run on images whose system has a `free_form`; this one has"
        " none. Name a run of system 'probabilistic'."
      )
    optimizer = make_optimizer(options.optimizer, options.learning_rate, options.num_steps)
    trained_on = dataset.name
    sets = [
      dataset if name == trained_on else load_scored_set(run, name, options.data_dir)
      for name in options.dataset
      or [trained_on, f"rotated_{trained_on}:35", f"affine_{trained_on}"]
    ]
    for stem, variables, head in each_seed("free-form", run, options):
      record, draw = infer_sets(run, run.system.free_form, optimizer, variables, sets, options)
      findings = Findings(record, [tables(record["results"]), *remarks({**head, **record})], draw)
      write_findings(options.folder, f"{stem}-{options.start}", head, findings)


def infer_sets(
  run: Run,
  free_form: FreeForm,
  optimizer: optax.GradientTransformation,
  variables: Any,
  sets: list[EvalDataset],
  options: argparse.Namespace,
) -> tuple[dict[str, Any], Callable[[], Figure]]:
  """The record of one seed, and the drawer of its figure.

  The figure shows the first rotated set, or the first set if none is rotated.
  """
  dataset, _, sizes = images_of(run)
  canvas, count = sizes["canvas"], dataset.num_classes
  inference_options = {
    name: getattr(options, name) for name in ("num_steps", "start", "num_samples")
  }
  infer = make_inference(free_form, optimizer, **inference_options)
  splits = []
  for scored in sets:
    check_transfer(dataset, scored, canvas)
    splits.append(load_split(scored, SPLIT, options.max_examples))
  # Training images: all that the report fits to (every), and those of free-form inference (alike).
  limits = {"every": run.settings.evaluation.max_examples, "alike": options.train_examples}
  train = {extent: load_split(dataset, "train", limit) for extent, limit in limits.items()}
  make_batch = functools.partial(evaluation_batch, canvas=canvas)
  encoding = encode_dataset(
    run.system, variables, train["every"], make_batch, batch_size=sizes["batch_size"]
  )
  sizes["batch_size"] = options.batch_size
  inferred = infer_split(infer, variables, train["alike"], **sizes)
  fitted_to = (
    (encoding.probe_features, train["every"]["label"]),
    (inferred.before.probe_features, train["alike"]["label"]),
    (inferred.after.probe_features, train["alike"]["label"]),
  )
  probes = {
    probe_kind: {
      name: fit_probe(np.asarray(values), labels, num_classes=count, name=name)
      for name, values in probe_features.items()
    }
    for probe_kind, (probe_features, labels) in zip(PROBES, fitted_to, strict=True)
  }
  pictured = next((scored for scored in sets if scored.name.startswith("rotated_")), sets[0])
  results, notes, drawers = {}, [], []
  for scored, split in zip(sets, splits, strict=True):
    began = time.perf_counter()
    inference = infer_split(infer, variables, split, **sizes)
    seconds = time.perf_counter() - began
    pixels = ((extent, pixel_features(images, split)) for extent, images in train.items())
    results[scored.name] = {
      **score(inference, split["label"], probes),
      "pixels": {
        extent: fit_probe(*fitted, num_classes=count, name=PIXELS).accuracy(*test)
        for extent, (fitted, test) in pixels
      },
      "seconds": seconds,  # with compilation, if the batch size is new
    }
    notes += scored.notes
    print(f"{scored.name}: {len(split['label']):,} examples in {seconds:.1f} s", flush=True)
    if scored is pictured:
      title = f"Free-form inference from the {options.start}: {scored.name}, step {run.step:,}"
      drawers.append(pictures(run.system, free_form, variables, split, inference, canvas, title))
  flags = ("start", "num_steps", "optimizer", "learning_rate", "num_samples", "max_examples")
  record = {
    "split": SPLIT,
    **{flag: getattr(options, flag) for flag in (*flags, "batch_size")},
    **{
      probe_kind: {
        name: {
          "fitted_examples": probe.num_examples,
          "train_accuracy": probe.train_accuracy,
          "converged": probe.converged,
        }
        for name, probe in fitted.items()
      }
      for probe_kind, fitted in probes.items()
    },
    "results": results,
    "notes": notes,
  }
  return record, drawers[0]


if __name__ == "__main__":
  main()
