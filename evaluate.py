"""Evaluates a trained run: a table, `metrics.json` and figures.

  python evaluate.py --workdir=runs/digits
  python evaluate.py --workdir=runs/mnist-official --split=train --step=best --max_examples=5000
  python evaluate.py --workdir=runs/mnist-official --dataset=affnist
  python evaluate.py --pretrained=NAME

The report on the run's own held-out split at its latest step goes to `<workdir>/evaluation/`, and
the page of explore.py, if the system has one, to `<workdir>/explore.html`. Any other report goes to
a folder in `<workdir>/evaluation/` whose name has the data set, split, step and number of examples.
For pretrained parameters, both go to `<workdir>/pretrained-<name>/`, or to
`runs/pretrained-<name>/` without a workdir. If the run has a system or a data set of your own, give
its dotted path by `--system` or `--source`: a saved config alone never imports code. Exit code 2:
cannot evaluate as asked.
"""

from scae_jax.errors import RunError, as_run_errors, exit_with_message, keys_as_flags

FLAGS = {
  "data.dir": "--data_dir",
  "data.affnist_dir": "--affnist_dir",
  "max_examples": "--max_examples",
}
FLAGS_OF_SCORED = FLAGS | {"data.dir": "--scored_dir", "data.name": "--dataset"}


def main(arguments: list[str] | None = None) -> None:
  """Reports on a run; `arguments` are those of the command line, None for this process's own."""
  with exit_with_message(process_ends=arguments is None):
    evaluate(arguments)


def evaluate(arguments: list[str] | None) -> None:
  """`main`, but raises `RunError` instead of exiting."""
  # Slow imports come here, where Ctrl-C already gives a message instead of a traceback.
  from absl import logging

  from scae_jax.config import plain_parser
  from scae_jax.page.write import look_inside
  from scae_jax.training.hosts import OFF, keep_compiled
  from scae_jax.training.reporting import (
    check_report_arguments,
    is_main,
    load_scored_set,
    report_run,
  )
  from scae_jax.training.run import check_step, named_folders, open_run
  from scae_jax.training.workdir import load_settings

  parser = plain_parser(__doc__)
  parser.add_argument("--workdir", default="", help="folder of a run of train.py")
  parser.add_argument("--pretrained", default="", help="parameters in pretrained/, not a run's")
  parser.add_argument("--step", default="latest", help="checkpoint: a number, latest or best")
  parser.add_argument("--dataset", default="", help="score on this: scae_jax/data/transfer.py")
  parser.add_argument("--data_dir", default="", help="where the run's data set is, if elsewhere")
  parser.add_argument("--scored_dir", default="", help="where --dataset is, if elsewhere")
  parser.add_argument("--affnist_dir", default="", help="where affNIST's official files are")
  parser.add_argument("--system", default="", help="dotted path of the run's, if of your own")
  parser.add_argument("--source", default="", help="dotted path of the run's data, if of your own")
  parser.add_argument("--split", help="to score, if not the held-out one")
  parser.add_argument("--max_examples", type=int, help="most examples to use; 0 uses all")
  options = parser.parse_args(arguments)
  logging.set_verbosity(logging.WARNING)
  with as_run_errors():
    folder, workdir = named_folders(options.workdir, options.pretrained)
    with keys_as_flags(FLAGS, folder / "config.json"), as_run_errors():
      if options.scored_dir and not options.dataset:
        raise RunError("--scored_dir is the folder of --dataset; give both, or --data_dir.")
      folders = {"data.dir": options.data_dir, "data.affnist_dir": options.affnist_dir}
      changes = {key: value for key, value in folders.items() if value}
      settings = load_settings(folder, options.system, options.source, changes)
      # Never the cache folder of the config: a shared run could have put programs there.
      keep_compiled(OFF if settings.train.compilation_cache == OFF else "")
      check_step(folder, options.step)
      scored_set = options.dataset, options.scored_dir
      with keys_as_flags(FLAGS_OF_SCORED, folder / "config.json"), as_run_errors():
        check_report_arguments(folder, settings, options.split, options.max_examples, *scored_set)
      run, scored = open_run(folder, options.step, settings), None
      if options.dataset:
        with keys_as_flags(FLAGS_OF_SCORED, folder / "config.json"), as_run_errors():
          scored = load_scored_set(run, *scored_set)
      choices = {"scored": scored, "split": options.split, "max_examples": options.max_examples}
      # The page first: for others, a folder with a report is complete.
      if is_main(run, **choices):
        look_inside(run, folder, workdir)
      report_run(run, workdir, **choices)


if __name__ == "__main__":
  main()
