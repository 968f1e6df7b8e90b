"""How commands write what they have found."""

import json
import os

import pytest
from matplotlib.figure import Figure

from experiments import findings
from scae_jax.evaluation.provenance import measured_with


def test_a_record_a_text_and_a_figure_are_written(tmp_path, capsys):
  record = {"command": "python -m it", "share": 0.5, **measured_with()}
  folder = tmp_path / "new"
  findings.write_findings(folder, "it", record, ["First.", "Second."], Figure)
  assert json.loads((folder / "it.json").read_text()) == record
  text = (folder / "it.md").read_text()
  assert text.startswith("First.\n\nSecond.\n\nCommand: `python -m it`.\n\nHardware: ")
  assert text.endswith(f"\n\nMeasured {record['date'][:10]}.\n")
  assert f"{os.cpu_count()} x " in text
  assert (folder / "it.png").read_bytes().startswith(b"\x89PNG")
  assert capsys.readouterr().out == f"{text}\n"

  findings.write_findings(folder, "bare", record, ["First."])
  names = sorted(path.name for path in folder.iterdir())
  assert names == ["bare.json", "bare.md", "it.json", "it.md", "it.png"]
  with pytest.raises(ValueError, match="JSON"):
    findings.write_findings(folder, "none", {**record, "share": float("nan")}, [])
  assert sorted(path.name for path in folder.iterdir()) == names


def test_the_command_is_what_was_typed(monkeypatch):
  monkeypatch.setattr("sys.argv", ["/some/where/routing.py", "runs/a b", "--split=test"])
  assert findings.command_line("routing") == (
    "python -m experiments.routing 'runs/a b' --split=test"
  )
