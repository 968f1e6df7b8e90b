"""The notebook runs from top to bottom, in a folder of its own."""

import json
import warnings

import pytest
from matplotlib import pyplot

from tests.runs import ROOT, SIZES


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_quickstart(tmp_path, monkeypatch, capsys):
  """Without a data set; its training is of 4 steps of a smaller model."""
  cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
  code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
  assert code.count("config.train.num_steps = 200\n") == 1
  smaller = f"config.update_from_flattened_dict({SIZES})\nconfig.train.num_steps = 4\n"
  code = code.replace("config.train.num_steps = 200\n", smaller)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
    exec(compile(code, "quickstart.ipynb", "exec"), {})
  pyplot.close("all")
  assert "labels: [0 1" in capsys.readouterr().out
  assert (tmp_path / "runs" / "quickstart" / "checkpoints").is_dir()
