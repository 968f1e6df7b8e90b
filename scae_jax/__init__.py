"""Capsule networks as inverse graphics, in JAX and Flax.

Open a trained model, and look inside:

    import scae_jax

    model = scae_jax.load("mnist")  # a pretrained name, a workdir, or a folder
    found = model.encode(images)    # uint8 or float in [0, 1], [n, h, w] or [n, h, w, c], any n
    found.object_presence, found.object_poses, found.part_poses, found.part_presence
    labels = model.predict(images)  # numbers into `model.class_names`
    image = model.draw(found)       # also `by="parts"`, or `only=3`, one object alone

    turned = found.object_poses.copy()
    turned[:, 3] = ...              # [2, 3], from the object's own to image coordinates
    image = model.draw(found.replace(object_poses=turned))  # its parts follow

    model.export("folder")          # StableHLO, which needs JAX alone

Train one of your own:

    scae_jax.train("configs/digits.py", "runs/mine")  # or a config, some keys of it changed:
    config = scae_jax.load_config("configs/digits.py")
    config.train.num_steps = 200
    scae_jax.train(config, "runs/short")
    model = scae_jax.load("runs/mine")

`Encoding` says what there is in `found`, `Model` what a model can do. What does not fit is a
`ValueError`, a run that cannot be opened or trained a `RunError`. Modules are imported when they
are first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from scae_jax.config import load_config
  from scae_jax.errors import RunError
  from scae_jax.library.loading import load
  from scae_jax.library.model import Model
  from scae_jax.models.system import Encoding, Found
  from scae_jax.training.loop import train

__all__ = ["Encoding", "Found", "Model", "RunError", "load", "load_config", "train"]

_HOMES = {
  "Encoding": "scae_jax.models.system",
  "Found": "scae_jax.models.system",
  "Model": "scae_jax.library.model",
  "RunError": "scae_jax.errors",
  "load": "scae_jax.library.loading",
  "load_config": "scae_jax.config",
  "train": "scae_jax.training.loop",
}


def __getattr__(name: str) -> Any:
  """The module of a name is imported when the name is first asked for."""
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  value = getattr(importlib.import_module(_HOMES[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
