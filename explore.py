"""Writes a page to look inside a trained model: one HTML file, which any browser opens from disk.

  python explore.py --workdir=runs/digits
  python explore.py --pretrained=mnist

Choose a test image or draw one; turn, move, scale and shear an object and watch its parts follow.
The model runs in the browser: no server, no network. The page goes to `<workdir>/explore.html`, of
pretrained parameters to `runs/pretrained-<name>/explore.html`, unless `--output` names a file. It
shows runs of the system `scae`.
Exit code 2: cannot be shown as asked.
"""

import pathlib

from absl import app, flags, logging

from scae_jax.data.dataset import Dataset
from scae_jax.library.loading import PRETRAINED, load
from scae_jax.page.write import require_supported, write_page
from scae_jax.training.build import build
from scae_jax.training.compilation import OFF, keep_compiled
from scae_jax.training.errors import RunError, exit_with_message, explained, parse_or_exit
from scae_jax.training.pretrained import pretrained_folder
from scae_jax.training.workdir import check_same_data, describe_data, load_settings

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run of train.py.")
_PRETRAINED = flags.DEFINE_string("pretrained", None, "Parameters in pretrained/, not a run's.")
_STEP = flags.DEFINE_string("step", "latest", "Which checkpoint: a number, 'latest' or 'best'.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where the run's data set is, if elsewhere.")
_SOURCE = flags.DEFINE_string("source", None, "Dotted path of the run's data, if of your own.")
_OUTPUT = flags.DEFINE_string("output", None, "File to write.")


def main(_: list[str]) -> None:
  """Opens the run that the flags name and writes its page."""
  logging.set_verbosity(logging.WARNING)
  with exit_with_message(), explained():
    if not _WORKDIR.value and not _PRETRAINED.value:
      raise RunError("name a run by --workdir=FOLDER, or parameters by --pretrained=NAME.")
    workdir = pathlib.Path(_WORKDIR.value or f"runs/pretrained-{_PRETRAINED.value}")
    path = pathlib.Path(_OUTPUT.value or workdir / "explore.html")
    folder = pretrained_folder(PRETRAINED, _PRETRAINED.value) if _PRETRAINED.value else workdir
    changes = {"data.dir": _DATA_DIR.value} if _DATA_DIR.value else {}
    settings = load_settings(folder, "", _SOURCE.value or "", changes)
    keep_compiled(OFF if settings.train.compilation_cache == OFF else "")
    model = load(folder, step=_STEP.value)
    require_supported(model)
    dataset = build(settings, training=False)[1]
    assert isinstance(dataset, Dataset)  # of images
    check_same_data(folder, describe_data(dataset))
    write_page(model, dataset, path)
    print(f"written to {path}")


def run() -> None:
  """The command, as users start it."""
  app.run(main, flags_parser=parse_or_exit)


if __name__ == "__main__":
  run()
