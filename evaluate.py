"""Evaluates a trained run: a table, `metrics.json` and figures.

  python evaluate.py --workdir=runs/digits
  python evaluate.py --workdir=runs/mnist-official --dataset=affnist --step=best
  python evaluate.py --pretrained=NAME

The run's own held-out split at its latest step goes to `<workdir>/evaluation/`, anything else to
`<workdir>/evaluation/<data set>-<split>[-step<number>]/`; the workdir of pretrained parameters is
`runs/pretrained-<name>` unless it is given. Exit code 2: cannot evaluate as asked.
"""

import pathlib

from absl import app, flags, logging

from scae_jax.data.transfer import load_scored
from scae_jax.evaluation.files import file_name
from scae_jax.evaluation.report import write_reports
from scae_jax.training.build import open_run
from scae_jax.training.compilation import keep_compiled
from scae_jax.training.config import read_settings
from scae_jax.training.errors import RunError, exit_with_message, explained, parse_or_exit
from scae_jax.training.pretrained import open_pretrained, pretrained_folder
from scae_jax.training.workdir import load_config

PRETRAINED = pathlib.Path(__file__).parent / "pretrained"

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run of train.py.")
_PRETRAINED = flags.DEFINE_string("pretrained", None, "Parameters in pretrained/, not a run's.")
_STEP = flags.DEFINE_string("step", "latest", "Which checkpoint: a number, 'latest' or 'best'.")
_DATASET = flags.DEFINE_string("dataset", None, "Score on this data set: scae_jax/data/transfer.py")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where the data set to score is, if elsewhere.")
_AFFNIST_DIR = flags.DEFINE_string("affnist_dir", None, "Instead of config.data.affnist_dir.")
_SPLIT = flags.DEFINE_string("split", None, "Split to score, if not the held-out one.")
_MAX_EXAMPLES = flags.DEFINE_integer("max_examples", None, "Use so many at most; 0 uses all.")


def main(_: list[str]) -> None:
  """Opens the run that the flags name and writes its report."""
  logging.set_verbosity(logging.WARNING)
  with exit_with_message(), explained():
    if not _WORKDIR.value and not _PRETRAINED.value:
      raise RunError("name a run by --workdir=FOLDER, or parameters by --pretrained=NAME.")
    workdir = pathlib.Path(_WORKDIR.value or f"runs/pretrained-{_PRETRAINED.value}")
    step = int(_STEP.value) if _STEP.value.isdecimal() else _STEP.value
    folder = pretrained_folder(PRETRAINED, _PRETRAINED.value) if _PRETRAINED.value else workdir
    config = load_config(folder)
    own_dir = None if _DATASET.value else _DATA_DIR.value
    given = {"data.dir": own_dir, "data.affnist_dir": _AFFNIST_DIR.value}
    config.update_from_flattened_dict({key: value for key, value in given.items() if value})
    settings, limit = read_settings(config), _MAX_EXAMPLES.value
    keep_compiled(settings.train.compilation_cache)
    run = (open_pretrained if _PRETRAINED.value else open_run)(folder, step, config)
    scored = run.dataset
    if _DATASET.value:
      data = settings.data
      folders = (_DATA_DIR.value or data.dir, data.cache_dir, data.affnist_dir)
      scored = load_scored(_DATASET.value, data.canvas, *folders)
    is_latest = step == "latest" or run.step == settings.train.num_steps
    split = _SPLIT.value or scored.held_out
    name = f"{scored.name}-{split}" + ("" if is_latest else f"-step{run.step}")
    is_own = is_latest and scored is run.dataset and split == scored.held_out
    write_reports(
      workdir / "evaluation" / ("" if is_own else file_name(name)),
      run.system,
      run.variables,
      run.dataset,
      canvas=settings.data.canvas,
      batch_size=settings.evaluation.batch_size,
      step=run.step,
      split=split,
      max_examples=settings.evaluation.max_examples if limit is None else limit,
      provenance={"workdir": str(workdir), "config": config.to_dict()},
      scored_dataset=scored,
      history=workdir / "metrics.jsonl",
    )


if __name__ == "__main__":
  app.run(main, flags_parser=parse_or_exit)
