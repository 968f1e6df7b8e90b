"""Bounds and linear probes of a trained model before and after free-form inference.

    python -m experiments.free_form runs/probabilistic-digits results/probabilistic

Each test image's posterior is optimised on its own bound, from the encoder's or the prior
(`scae_jax/evaluation/free_form.py`); the model is fixed. A linear classifier, fitted to the
encoder's posteriors of the training images, classifies the posteriors before and after. Two more
are fitted to posteriors of training images inferred in the same way, before and after the steps,
and one to the images' pixels. Writes `free-form-<workdir>-<start>.md`, `.json` and `.png` into the
folder, of a run with several seeds `free-form-<workdir>-seed-<seed>-<start>` of each. Images are
the test split as it is, rotated by 35 degrees and under affNIST's maps, or what `--dataset` names,
which may be given several times.
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
from scae_jax.errors import RunError, exit_with_message, explained
from scae_jax.evaluation.collect import feature_collector
from scae_jax.evaluation.comparison import markdown
from scae_jax.evaluation.examples import check_transfer, load_split, one_of_each_class
from scae_jax.evaluation.free_form import STARTS, FreeInference, infer_split, make_inference
from scae_jax.evaluation.probes import Fit, fit_probe
from scae_jax.evaluation.scores import MAX_PIXEL_EXAMPLES, PIXELS, pixel_features
from scae_jax.figures import FIGURES
from scae_jax.figures.reconstructions import MAX_EXAMPLES
from scae_jax.models.system import FreeForm, System
from scae_jax.training.reporting import load_scored_set
from scae_jax.training.run import Run

SPLIT = "test"
# Classifiers as the record calls them: of the encoder's posteriors of all training images, and of
# posteriors of some that are inferred as those of test images are, before the steps and after.
PROBES = ("probes", "probes_before_alike", "probes_alike")
# Columns of accuracies: of which posteriors, by which classifiers.
WHEN = {
  "before": ("before", "probes"),
  "after": ("after", "probes"),
  "before_alike": ("before", "probes_before_alike"),
  "after_alike": ("after", "probes_alike"),
}
# In words; what makes it; the learning rate where the command line has none. L-BFGS searches along
# each step for how far to go.
OPTIMIZERS = {
  "adam": ("Adam", optax.adam, 0.01),
  "sgd": ("gradient descent", optax.sgd, 1e-4),
  "lbfgs": ("L-BFGS", optax.lbfgs, None),
}
Probes = Mapping[str, Fit]  # a linear classifier of each kind of probe features


def make_stepper(
  name: str, learning_rate: float | None, num_steps: int
) -> optax.GradientTransformation:
  """The optimiser of one name of `OPTIMIZERS`; its rate falls to 0 under a cosine."""
  _, make, default = OPTIMIZERS[name]
  if default is None:
    if learning_rate is not None:
      raise RunError(
        "--optimizer=lbfgs searches along each step for how far to go; leave --learning_rate out."
      )
    return make()
  if learning_rate is None or not learning_rate > 0:
    raise RunError(f"--learning_rate must be above 0; it is {learning_rate}.")
  return make(optax.cosine_decay_schedule(learning_rate, max(num_steps, 1)))


def described(record: Mapping[str, Any]) -> str:
  """The optimiser in words."""
  rate = record["learning_rate"]
  how = f", learning rate {rate:g} under a cosine" if rate else " with a line search"
  return f"{OPTIMIZERS[record['optimizer']][0]}{how}"


def score(found: FreeInference, labels: np.ndarray, probes: Mapping[str, Probes]) -> dict[str, Any]:
  """Bounds, their terms and accuracies before and after, for the JSON file."""
  both = {"before": found.before, "after": found.after}
  low, high = (np.asarray(one.bound, np.float64) for one in both.values())
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
    "accuracy": {
      name: {
        column: probes[which][name].accuracy(np.asarray(both[when].probe_features[name]), labels)
        for column, (when, which) in WHEN.items()
      }
      for name in probes["probes"]
    },
  }


def pictures(
  system: System,
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
  drawn = {}
  encode, draw_parts = free_form.encoding, system.draws["parts"]
  draw = jax.jit(lambda one: draw_parts(variables, encode(variables, one), jnp.int32(-1), canvas))
  for when, one in (("before", found.before), ("after", found.after)):
    posterior = jax.tree.map(lambda leaf: leaf[shown], one.posterior)
    drawn[when] = np.asarray(draw(posterior))
    drawn[f"bound_{when}"] = np.asarray(one.bound)[shown]
  image = np.asarray(batch["image"])
  return functools.partial(FIGURES["free_form"], image=image, **drawn, title=title)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Markdown: bounds and their terms in nats, a row a data set; then accuracies in percent, a row
  for each kind of probe features and for pixels of each data set."""
  terms = list(next(iter(results.values()))["terms"])
  bounds = [["", "examples", "bound before", "after", "did not rise", *terms]]
  scores = [["", "LIN-PRED", *(when.replace("_alike", ", fitted alike") for when in WHEN)]]
  for name, result in results.items():
    bound, means = result["bound"], result["terms"]
    cells = [f"{result['examples']:,}", f"{bound['before']:.1f}", f"{bound['after']:.1f}"]
    cells.append(f"{bound['examples_that_did_not_rise']:,}")
    cells += [f"{means[term]['before']:.1f} to {means[term]['after']:.1f}" for term in terms]
    bounds.append([name, *cells])
    for kind, shares in result["accuracy"].items():
      scores.append([name, kind, *(f"{100 * shares[when]:.1f}" for when in WHEN)])
    every, alike = (f"{100 * result['pixels'][kind]:.1f}" for kind in ("every", "alike"))
    scores.append([name, PIXELS, every, "", alike, ""])
  return f"{markdown(bounds)}\n\n{markdown(scores)}"


def remarks(record: Mapping[str, Any]) -> list[str]:
  """What the table was measured on."""
  fitted, _, alike = (
    max((one["fitted_examples"] for one in record[kind].values()), default=0) for kind in PROBES
  )
  fits = [(name, one) for kind in PROBES for name, one in record[kind].items()]
  unsettled = [name for name, one in fits if not one["converged"]]
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
  with exit_with_message(), explained():
    run = open_named(options)
    dataset, _, _ = images_of(run)
    if run.system.free_form is None:
      raise RunError(
        "free-form inference takes a run on images whose system has a `free_form`; this one has"
        " none. Name a run of system 'probabilistic'."
      )
    optimizer = make_stepper(options.optimizer, options.learning_rate, options.num_steps)
    own = dataset.name
    sets = [
      dataset if name == own else load_scored_set(run, name, options.data_dir)
      for name in options.dataset or [own, f"rotated_{own}:35", f"affine_{own}"]
    ]
    for stem, variables, head in each_seed("free-form", run, options):
      record, draw = infer_sets(run, run.system.free_form, optimizer, variables, sets, options)
      found = Findings(record, [table(record["results"]), *remarks({**head, **record})], draw)
      write_findings(options.folder, f"{stem}-{options.start}", head, found)


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
  dataset, _, sizes = images_of(run)
  canvas, count = sizes["canvas"], dataset.num_classes
  collect = feature_collector(run.system, **sizes)
  given = {name: getattr(options, name) for name in ("num_steps", "start", "num_samples")}
  infer = make_inference(free_form, optimizer, **given)
  splits = []
  for scored in sets:
    check_transfer(dataset, scored, canvas)
    splits.append(load_split(scored, SPLIT, options.max_examples))
  # Training images as they are: all that the report fits to, and those inferred as test images are.
  limits = {"every": run.settings.evaluation.max_examples, "alike": options.train_examples}
  train = {which: load_split(dataset, "train", limit) for which, limit in limits.items()}
  sizes["batch_size"] = options.batch_size
  inferred = infer_split(infer, variables, train["alike"], **sizes)
  fitted_to = (
    (collect(variables, train["every"])["probe_features"], train["every"]["label"]),
    (inferred.before.probe_features, train["alike"]["label"]),
    (inferred.after.probe_features, train["alike"]["label"]),
  )
  probes = {
    which: {
      name: fit_probe(np.asarray(values), labels, num_classes=count, name=name)
      for name, values in probe_features.items()
    }
    for which, (probe_features, labels) in zip(PROBES, fitted_to, strict=True)
  }
  pictured = next((one for one in sets if one.name.startswith("rotated_")), sets[0])
  results, notes, drawers = {}, [], []
  for scored, split in zip(sets, splits, strict=True):
    began = time.perf_counter()
    found = infer_split(infer, variables, split, **sizes)
    seconds = time.perf_counter() - began
    pixels = ((which, pixel_features(images, split)) for which, images in train.items())
    results[scored.name] = {
      **score(found, split["label"], probes),
      "pixels": {
        which: fit_probe(*fitted, num_classes=count, name=PIXELS).accuracy(*test)
        for which, (fitted, test) in pixels
      },
      "seconds": seconds,  # with compilation, where the batch is of a new size
    }
    notes += scored.notes
    print(f"{scored.name}: {len(split['label']):,} examples in {seconds:.1f} s", flush=True)
    if scored is pictured:
      title = f"Free-form inference from the {options.start}: {scored.name}, step {run.step:,}"
      drawers.append(pictures(run.system, free_form, variables, split, found, canvas, title))
  flags = ("start", "num_steps", "optimizer", "learning_rate", "num_samples", "max_examples")
  record = {
    "split": SPLIT,
    **{flag: getattr(options, flag) for flag in (*flags, "batch_size")},
    **{
      which: {
        name: {
          "fitted_examples": probe.num_examples,
          "train_accuracy": probe.train_accuracy,
          "converged": probe.converged,
        }
        for name, probe in fitted.items()
      }
      for which, fitted in probes.items()
    },
    "results": results,
    "notes": notes,
  }
  return record, drawers[0]


if __name__ == "__main__":
  main()
