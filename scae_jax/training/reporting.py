"""Reports on a run, at the end of its training and for evaluate.py."""

import pathlib

from scae_jax.config import Settings
from scae_jax.data.constellations import Scenes
from scae_jax.data.dataset import Dataset, EvalDataset, Preview
from scae_jax.data.feed import evaluation_examples, spec_of
from scae_jax.data.options import DataOptions
from scae_jax.data.transfer import load_scored, preview_scored
from scae_jax.errors import RunError
from scae_jax.evaluation.evaluators import evaluate_answers, evaluate_features, evaluate_scenes
from scae_jax.evaluation.examples import check_split, check_transfer, choose, named_split
from scae_jax.evaluation.provenance import recorded_folder
from scae_jax.evaluation.report import Evaluated, write_reports
from scae_jax.files import file_name
from scae_jax.interrupt import say
from scae_jax.precision import single_precision
from scae_jax.training.run import Run
from scae_jax.training.workdir import read_image_facts, read_splits

_MAX_NAME = 48  # letters of a data set's name in the name of a folder, which has at most 255 bytes
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
  """Writes tables and figures to a folder in the workdir; prints and returns the folder.

  A run's main report (see `is_main`) goes to `<workdir>/evaluation`. Any other goes to a folder in
  it, `<data set>-<split>[-<fingerprint>][-step<number>][-max<examples>|-all]`:
    fingerprint  of the split, unless it is the run's own split of a data set with a known name
    step         unless it is the latest
    max, all     unless it is the config's number of examples

  Args:
    run: the run to report on.
    workdir: folder of the run or of its results.
    scored: data set to score on; None for the run's own.
    split: split to score; None for the held-out one.
    max_examples: most examples of each split; None for the config's number, 0 for all.

  Raises:
    RunError: another data set or split is given for a run on generated scenes; also what
      `write_reports` and the evaluators raise.
  """
  settings = run.settings
  config_max_examples = settings.evaluation.max_examples
  is_main_report = is_main(run, scored=scored, split=split, max_examples=max_examples)
  if max_examples is None:
    max_examples = config_max_examples
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
    items = evaluate_scenes(evaluated, run.dataset)
    name = f"{run.dataset.name}-test"
  else:
    assert isinstance(settings.data, DataOptions)  # a data set of images
    scored = run.dataset if scored is None else scored
    split = split or scored.held_out
    name = _report_name(run.dataset, scored, split)
    check_transfer(run.dataset, scored, settings.data.canvas)
    spec = spec_of(settings.data, run.dataset.channels, run.dataset.num_classes)
    variables = next(iter(run.variables.values()))
    if run.system.encoding_shapes(variables, spec).scores is None:
      items = evaluate_features(evaluated, run.dataset, scored, split, settings.data.canvas)
    else:
      examples, make_batch = evaluation_examples(named_split(scored, split), settings.data)
      items = evaluate_answers(evaluated, scored, split, examples, make_batch)
  name += "" if run.is_latest else f"-step{run.step}"
  if max_examples != config_max_examples:
    name += f"-max{max_examples}" if max_examples else "-all"
  directory = workdir / "evaluation"
  if not is_main_report:
    directory /= file_name(name)
  write_reports(directory, evaluated, items)
  say(f"written to {directory}")
  return directory


def is_main(
  run: Run,
  *,
  scored: EvalDataset | None = None,
  split: str | None = None,
  max_examples: int | None = None,
) -> bool:
  """Whether a report is the run's main one.

  It scores the run's own held-out split, at the latest step, with the config's number of examples.
  """
  own_split = None if isinstance(run.dataset, Scenes) else run.dataset.held_out
  has_config_number = max_examples in (None, run.settings.evaluation.max_examples)
  return scored is None and split in (None, own_split) and run.is_latest and has_config_number


def _report_name(trained: Dataset, scored: EvalDataset, split: str) -> str:
  """`<data set>-<split>[-<fingerprint>]`, see `report_run`; `trained` is the run's data set."""
  fingerprint = named_split(scored, split).fingerprint
  is_own = split in trained.splits and trained.splits[split].fingerprint == fingerprint
  name = f"{scored.name[:_MAX_NAME]}-{split}"
  return name if is_own and scored.has_known_name else f"{name}-{fingerprint[:8]}"


def check_report_arguments(
  folder: pathlib.Path,
  settings: Settings,
  split: str | None,
  max_examples: int | None,
  name: str,
  data_dir: str,
) -> None:
  """Checks the arguments of a report before any image is decoded.

  `name` and `data_dir` are those of another data set to score on, or "". Raises `RunError` or
  ValueError for a negative limit, an unknown split, and a data set whose channels, classes or image
  sizes the model does not take. What needs the images is checked later.
  """
  choose(0, max_examples or 0)
  data = settings.data
  if not isinstance(data, DataOptions):
    if name or split is not None:
      raise RunError(_ONLY_OWN_SCENES)
    return
  if not (folder / "data.json").is_file():
    return  # an older run
  spec, class_names, shape = read_image_facts(folder, data)
  scored = trained = Preview(data.name, class_names, read_splits(folder), spec.channels, shape)
  if name:
    scored = preview_scored(name, data, data_dir)
  if scored is not None and split is not None:
    check_split(scored, split)
  if name and scored is not None:
    check_transfer(trained, scored, data.canvas)


def load_scored_set(run: Run, name: str, data_dir: str) -> EvalDataset:
  """Another data set to score a run on; an empty `data_dir` stands for that of the run's config."""
  data = run.settings.data
  if not isinstance(data, DataOptions):
    raise RunError(_ONLY_OWN_SCENES)
  return load_scored(name, data, data_dir)
