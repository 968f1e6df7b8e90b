"""Evaluates a trained run: a table, `metrics.json` and figures.

  python evaluate.py --workdir=runs/digits
  python evaluate.py --workdir=runs/mnist-official --split=train --step=best --max_examples=5000
  python evaluate.py --workdir=runs/mnist-official --dataset=affnist
  python evaluate.py --pretrained=NAME

The run's own held-out split at its latest step goes to `<workdir>/evaluation/`, and the page of
explore.py, where the system has one, to `<workdir>/explore.html`. Any other report goes to a folder
of `<workdir>/evaluation/`, named after what it is of. Of pretrained parameters all goes to
`<workdir>/pretrained-<name>/`, without a workdir to `runs/pretrained-<name>/`. A run of a system or
a data set of your own needs `--system` or `--source` with its dotted path: what is saved in a
folder imports no code. Exit code 2: cannot evaluate as asked.
"""

from scae_jax.errors import RunError, exit_with_message, explained, in_flags

FLAGS = {
  "data.dir": "--data_dir",
  "data.affnist_dir": "--affnist_dir",
  "max_examples": "--max_examples",
}
FLAGS_OF_SCORED = FLAGS | {"data.dir": "--scored_dir", "data.name": "--dataset"}


def main(arguments: list[str] | None = None) -> None:
  """Opens the run that the command line names and writes its report; None stands for this one's."""
  with exit_with_message(process_ends=arguments is None):
    evaluate(arguments)


def evaluate(arguments: list[str] | None) -> None:
  """`main`; raises `RunError`."""
  # Here, because they take seconds, in which Ctrl-C is heard already.
  from absl import logging

  from scae_jax.config import plain_parser
  from scae_jax.page.write import look_inside
  from scae_jax.training.hosts import OFF, keep_compiled
  from scae_jax.training.reporting import check_asked, is_main, load_scored_set, report_run
  from scae_jax.training.run import open_run
  from scae_jax.training.start import check_step, named_folders
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
  with explained():
    folder, workdir = named_folders(options.workdir, options.pretrained)
    with in_flags(FLAGS, folder / "config.json"), explained():
      if options.scored_dir and not options.dataset:
        raise RunError("--scored_dir is where --dataset is; give both, or --data_dir.")
      given = {"data.dir": options.data_dir, "data.affnist_dir": options.affnist_dir}
      changes = {key: value for key, value in given.items() if value}
      settings = load_settings(folder, options.system, options.source, changes)
      # Never the folder that the config names: who shares a run may have put programs there.
      keep_compiled(OFF if settings.train.compilation_cache == OFF else "")
      check_step(folder, options.step)
      named = options.dataset, options.scored_dir
      with in_flags(FLAGS_OF_SCORED, folder / "config.json"), explained():
        check_asked(folder, settings, options.split, options.max_examples, *named)
      run, scored = open_run(folder, options.step, settings), None
      if options.dataset:
        with in_flags(FLAGS_OF_SCORED, folder / "config.json"), explained():
          scored = load_scored_set(run, *named)
      asked = {"scored": scored, "split": options.split, "max_examples": options.max_examples}
      # The page first: who finds the report takes all as finished.
      if is_main(run, **asked):
        look_inside(run, folder, workdir)
      report_run(run, workdir, **asked)


if __name__ == "__main__":
  main()
