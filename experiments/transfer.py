"""A table of one run scored on several data sets, from the reports of evaluate.py.

    python evaluate.py --workdir=runs/digits --dataset=affine_digits
    python -m experiments.transfer runs/digits results/transfer

Writes `<workdir's name>.md` and `.json` into the folder. The table has a row for each data set and
split, the run's own first. Reports of another step or number of examples than the run's own are
left out. Below the table are the notes of the reports, and why others are left out.
"""

import pathlib
from typing import Any

from scae_jax.config import plain_parser
from scae_jax.errors import RunError, as_run_errors, exit_with_message
from scae_jax.evaluation.comparison import markdown_table, scored_name
from scae_jax.files import read_json, write_json, write_whole


def read_reports(workdir: pathlib.Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
  """The reports of a run for one table, by scored split, and a sentence on each that is left out.

  The report on the run's own data set is first. A run without it raises RunError.
  """
  own_report = workdir / "evaluation" / "metrics.json"
  if not own_report.is_file():
    raise RunError(f"{workdir} has no report; run evaluate.py --workdir={workdir} first.")
  reports, left_out, expected = {}, [], ()
  for path in (own_report, *sorted(own_report.parent.glob("*/metrics.json"))):
    # A run of several seeds has a folder for each, and its summary above them.
    if path.parent.name.startswith("seed-"):
      continue
    report = read_json(path, "scored_on", "step", "max_examples")
    name = scored_name(report["scored_on"])
    limit = report["max_examples"]
    amount = f"at most {limit:,} examples of each split" if limit else "all examples"
    extent = f"step {report['step']:,}", amount
    pairs = zip(extent, expected or extent, strict=True)
    reasons = [f"of {actual}, not of {other}" for actual, other in pairs if actual != other]
    if not reasons and name in reports:
      reasons = [f"of {name}, as another one is"]
    if reasons:
      left_out.append(f"Left out: the report in {path.parent.name}, {' and '.join(reasons)}.")
    else:
      reports[name], expected = report, expected or extent
  return reports, left_out


def main() -> None:
  """Writes and prints the table of the run on the command line."""
  parser = plain_parser(__doc__)
  parser.add_argument("workdir", type=pathlib.Path)
  parser.add_argument("folder", type=pathlib.Path)
  options = parser.parse_args()
  with exit_with_message(), as_run_errors():
    reports, left_out = read_reports(options.workdir)
    name = options.workdir.absolute().name
    write_json(options.folder / f"{name}.json", reports)
    notes = dict.fromkeys(note for report in reports.values() for note in report.get("notes", ()))
    text = markdown_table(reports) + "".join(f"{line}\n" for line in (*notes, *left_out))
    write_whole(options.folder / f"{name}.md", text.encode())
    print(text)


if __name__ == "__main__":
  main()
