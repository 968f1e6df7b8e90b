"""Reports on a run, at the end of its training and for evaluate.py."""

import math
import pathlib

from scae_jax.data.constellations import Scenes
from scae_jax.data.dataset import EvalDataset
from scae_jax.data.feed import evaluation_examples
from scae_jax.data.options import DataOptions
from scae_jax.data.transfer import load_scored
from scae_jax.evaluation.examples import check_transfer, named_split
from scae_jax.evaluation.provenance import recorded_folder
from scae_jax.evaluation.report import Evaluated, write_reports
from scae_jax.evaluation.scorers import answer_scorer, feature_scorer, scene_scorer
from scae_jax.files import file_name
from scae_jax.precision import single_precision
from scae_jax.training.build import Run
from scae_jax.training.errors import RunError

_ONLY_OWN_SCENES = (
  "a run on generated scenes is scored on its own test scenes: leave out --dataset and --split."
)


@single_precision
def report_run(
  run: Run,
  workdir: pathlib.Path,
  *,
  scored: EvalDataset | None = None,
  split: str | None = None,
  max_examples: int | None = None,
) -> pathlib.Path:
  """Writes tables and figures to `<workdir>/evaluation`, or to a folder below it, and returns it.

  The run's own held-out split at its latest step goes to `evaluation` itself. Anything else, and a
  report on another number of examples than the config says, goes to
  `evaluation/<data set>-<split>[-step<number>][-max<examples>|-all]`; the last is left out where
  another split or data set has all or more. Prints which folder it was.

  What is None is the run's own; 0 `max_examples` are all. Raises `RunError` if another data set or
  split is asked of a run on generated scenes, and what `write_reports` and the scorers raise.
  """
  settings = run.settings
  usual = settings.evaluation.max_examples
  if max_examples is None:
    max_examples = usual
  evaluated = Evaluated(
    system=run.system,
    variables=run.variables,
    step=run.step,
    batch_size=settings.evaluation.batch_size,
    max_examples=max_examples,
    provenance={"workdir": recorded_folder(workdir), "config": run.config.to_dict()},
    history=workdir / "metrics.jsonl",
  )
  if isinstance(run.dataset, Scenes):
    if scored is not None or split is not None:
      raise RunError(_ONLY_OWN_SCENES)
    scorer = scene_scorer(evaluated, run.dataset)
    is_own, name = True, f"{run.dataset.name}-test"
  else:
    assert isinstance(settings.data, DataOptions)  # of images
    is_own = scored is None and split in (None, run.dataset.held_out)
    scored = run.dataset if scored is None else scored
    split = split or scored.held_out
    name = f"{scored.name}-{split}"
    if run.system.classify is None:
      scorer = feature_scorer(evaluated, run.dataset, scored, split, settings.data.canvas)
    else:
      check_transfer(run.dataset, scored, settings.data.canvas)
      examples, make_batch = evaluation_examples(named_split(scored, split), settings.data)
      scorer = answer_scorer(evaluated, scored, split, examples, make_batch)
  suffix = "" if run.is_latest else f"-step{run.step}"
  is_less = 0 < max_examples < (usual or math.inf)
  if is_less or (is_own and max_examples != usual):
    suffix += f"-max{max_examples}" if max_examples else "-all"
  directory = workdir / "evaluation"
  if suffix or not is_own:
    directory /= file_name(f"{name}{suffix}")
  write_reports(directory, evaluated, scorer)
  print(f"written to {directory}")
  return directory


def load_scored_set(run: Run, name: str, data_dir: str) -> EvalDataset:
  """Another data set to score a run on, in `data_dir` or, where empty, the folder of its config."""
  data = run.settings.data
  if not isinstance(data, DataOptions):
    raise RunError(_ONLY_OWN_SCENES)
  return load_scored(name, data, data_dir)
