"""Evaluates a trained run: a table, `metrics.json` and figures.

  python evaluate.py --workdir=runs/digits
  python evaluate.py --workdir=runs/mnist-official --split=train --step=best --max_examples=5000
  python evaluate.py --workdir=runs/mnist-official --dataset=affnist
  python evaluate.py --pretrained=NAME

The run's own held-out split at its latest step goes to `<workdir>/evaluation/`. Anything else, and
a report on fewer examples than the run's config says, goes to
`<workdir>/evaluation/<data set>-<split>[-step<number>][-max<examples>]/`. The last line printed
names the folder. The workdir of pretrained parameters is `runs/pretrained-<name>` unless given. A
run of a system or a data set of your own needs `--system` or `--source` with its dotted path: what
is saved in a folder imports no code.
Exit code 2: cannot evaluate as asked.
"""

import pathlib

from absl import app, flags, logging

from scae_jax.training.build import open_run
from scae_jax.training.checkpoints import named_checkpoint
from scae_jax.training.compilation import OFF, keep_compiled
from scae_jax.training.errors import RunError, exit_with_message, explained, parse_or_exit
from scae_jax.training.pretrained import open_pretrained, pretrained_folder
from scae_jax.training.reporting import load_scored_set, report_run
from scae_jax.training.workdir import load_settings

PRETRAINED = pathlib.Path(__file__).parent / "pretrained"

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run of train.py.")
_PRETRAINED = flags.DEFINE_string("pretrained", None, "Parameters in pretrained/, not a run's.")
_STEP = flags.DEFINE_string("step", "latest", "Which checkpoint: a number, 'latest' or 'best'.")
_DATASET = flags.DEFINE_string("dataset", None, "Score on this data set: scae_jax/data/transfer.py")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where the data set to score is, if elsewhere.")
_AFFNIST_DIR = flags.DEFINE_string("affnist_dir", None, "Instead of config.data.affnist_dir.")
_SYSTEM = flags.DEFINE_string("system", None, "Dotted path of the run's system, if of your own.")
_SOURCE = flags.DEFINE_string("source", None, "Dotted path of the run's data, if of your own.")
_SPLIT = flags.DEFINE_string("split", None, "Split to score, if not the held-out one.")
_MAX_EXAMPLES = flags.DEFINE_integer("max_examples", None, "Most examples to use; 0 uses all.")


def main(_: list[str]) -> None:
  """Opens the run that the flags name and writes its report."""
  logging.set_verbosity(logging.WARNING)
  with exit_with_message(), explained():
    if not _WORKDIR.value and not _PRETRAINED.value:
      raise RunError("name a run by --workdir=FOLDER, or parameters by --pretrained=NAME.")
    workdir = pathlib.Path(_WORKDIR.value or f"runs/pretrained-{_PRETRAINED.value}")
    step = named_checkpoint(_STEP.value)
    folder = pretrained_folder(PRETRAINED, _PRETRAINED.value) if _PRETRAINED.value else workdir
    own_dir = None if _DATASET.value else _DATA_DIR.value
    given = {"data.dir": own_dir, "data.affnist_dir": _AFFNIST_DIR.value}
    changes = {key: value for key, value in given.items() if value}
    settings = load_settings(folder, _SYSTEM.value or "", _SOURCE.value or "", changes)
    # Never the folder that the config names: who shares a run may have put programs there.
    keep_compiled(OFF if settings.train.compilation_cache == OFF else "")
    run = (open_pretrained if _PRETRAINED.value else open_run)(folder, step, settings)
    scored = None
    if _DATASET.value:
      scored = load_scored_set(run, _DATASET.value, _DATA_DIR.value or "")
    report_run(
      run,
      workdir,
      scored=scored,
      split=_SPLIT.value,
      max_examples=_MAX_EXAMPLES.value,
    )


def run() -> None:
  """The command, as users start it."""
  app.run(main, flags_parser=parse_or_exit)


if __name__ == "__main__":
  run()
