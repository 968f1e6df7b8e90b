"""Writes a page to look inside a trained model: one HTML file, which any browser opens from disk.

  python explore.py --workdir=runs/digits
  python explore.py --pretrained=mnist

Choose a test image or draw one; turn, move, scale and shear an object and watch its parts follow.
The model runs in the browser: no server, no network. The page goes to `<workdir>/explore.html`, or
to `explore-step<number>.html` for an earlier step; for pretrained parameters, to the folder
`pretrained-<name>` in the workdir or in `runs`. `--output` names another file. The systems `scae`,
`probabilistic` and `capsnet` have a page.
Exit code 2: cannot be shown as asked.
"""

from scae_jax.errors import as_run_errors, exit_with_message, keys_as_flags


def main(arguments: list[str] | None = None) -> None:
  """Writes the page of the run that the command line names."""
  with exit_with_message(process_ends=arguments is None):
    explore(arguments)


def explore(arguments: list[str] | None) -> None:
  """`main`, but raises `RunError` instead of exiting."""
  # Slow imports come here, where Ctrl-C already gives a message instead of a traceback.
  from absl import logging

  from scae_jax.config import plain_parser
  from scae_jax.files import given_path
  from scae_jax.interrupt import say
  from scae_jax.page.drawable import check_system
  from scae_jax.page.write import page_path, write_run
  from scae_jax.training.hosts import OFF, keep_compiled
  from scae_jax.training.run import named_folders, open_run
  from scae_jax.training.workdir import load_settings, saved_settings

  parser = plain_parser(__doc__)
  parser.add_argument("--workdir", default="", help="folder of a run of train.py")
  parser.add_argument("--pretrained", default="", help="parameters in pretrained/, not a run's")
  parser.add_argument("--step", default="latest", help="checkpoint: a number, latest or best")
  parser.add_argument("--data_dir", default="", help="where the run's data set is, if elsewhere")
  parser.add_argument("--source", default="", help="dotted path of the run's data, if of your own")
  parser.add_argument("--output", default="", help="file to write")
  options = parser.parse_args(arguments)
  logging.set_verbosity(logging.WARNING)
  with as_run_errors():
    folder, workdir = named_folders(options.workdir, options.pretrained)
  with keys_as_flags({"data.dir": "--data_dir"}, folder / "config.json"), as_run_errors():
    changes = {"data.dir": options.data_dir} if options.data_dir else {}
    check_system(saved_settings(folder, changes).system)
    settings = load_settings(folder, "", options.source, changes)
    keep_compiled(OFF if settings.train.compilation_cache == OFF else "")
    run = open_run(folder, options.step, settings)
    path = given_path(options.output) if options.output else page_path(run, workdir)
    write_run(run, folder, path)
  say(f"written to {path}")


if __name__ == "__main__":
  main()
