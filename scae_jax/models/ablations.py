"""Ablations of the SCAE, one switch each, for its configs in `configs`.

    python train.py --config=configs/mnist.py:official,ablation=no_posterior_sparsity
    python train.py --config=configs/digits.py:ablation=no_noise+no_deformations

Most are from Kosiorek et al. 2019, section 3.3. `loss.schedule` multiplies weights, so a weight of
zero stays zero. Colours are computed from special features, so without these parts have no colour.
The MLP has 16 hidden units for each object capsule, the width of the set transformer on MNIST; with
the width of 64 of the colour configs it would have some 150 million parameters.
"""

from ml_collections import ConfigDict

POSTERIOR = {"loss.weights.posterior_within": 0.0, "loss.weights.posterior_between": 0.0}
PRIOR = {"loss.weights.prior_within": 0.0, "loss.weights.prior_between": 0.0}
OBJECT_NOISE = {"model.object_decoder.presence_noise": 0.0}
PART_NOISE = {"model.part_encoder.presence_noise": 0.0}
# For each name: what changes in a sentence, and the config keys that change.
MENU = {
  "no_posterior_sparsity": ("posterior mass need not be sparse", POSTERIOR),
  "no_prior_sparsity": ("presences of objects need not be sparse", PRIOR),
  "no_sparsity": ("neither sparsity", POSTERIOR | PRIOR),
  "no_object_noise": ("no noise on presences of objects and their votes", OBJECT_NOISE),
  "no_part_noise": ("no noise on presences of parts", PART_NOISE),
  "no_noise": ("no noise on any presence", OBJECT_NOISE | PART_NOISE),
  "similarity_transforms": (
    "poses of parts and objects are similarities, not affine maps",
    {"model.part_encoder.similarity": True, "model.object_decoder.similarity": True},
  ),
  "no_deformations": (
    "object-part transforms are the same for every example",
    {"model.object_decoder.deformations": False},
  ),
  "linear_part_encoder": (
    "parts by a linear layer on the whole feature map, not by attention",
    {"model.part_encoder.pooling": "linear"},
  ),
  "mean_pooled_part_encoder": (
    "parts by the mean over positions, not by attention",
    {"model.part_encoder.pooling": "mean"},
  ),
  "mlp_object_encoder": (
    "objects by an MLP on all parts in order, not by a set transformer",
    # The MLP's objects share their parameters, so an idle one cannot become a copy of another.
    {
      "model.object_encoder.kind": "mlp",
      "model.object_encoder.features": 16,
      "train.revive_idle": (),
    },
  ),
  "no_special_features": (
    "parts have no special features, and so no colour",
    {"model.part_encoder.num_features": 0, "model.part_decoder.colour": False},
  ),
  "coupled_mixing": (
    "mixing logits are the coloured templates; no alpha templates",
    {"model.part_decoder.mixing": "coupled"},
  ),
}
# What `train.py --help` lists for a config file that exports it.
ABLATIONS = {name: sentence for name, (sentence, _) in MENU.items()}


def split(preset: str) -> tuple[str, tuple[str, ...]]:
  """Splits `official,ablation=a+b` into ("official", ("a", "b")); both parts are optional.

  ValueError if the string has another form.
  """
  base, *items = preset.split(",")
  if "=" in base:
    base, items = "", [base, *items]
  names = []
  for item in items:
    key, _, value = item.partition("=")
    if key != "ablation" or not value:
      raise ValueError(
        f"cannot read {item!r} of the preset {preset!r}; expected"
        " [PRESET][,]ablation=NAME[+NAME...]"
      )
    names += value.split("+")
  return base, tuple(names)


def apply(config: ConfigDict, names: tuple[str, ...]) -> ConfigDict:
  """Applies ablations to the config, in place, and returns it.

  A run that continues another one then continues the run with the same ablations.
  ValueError if an ablation is unknown or changes nothing in this config, or if two set a key to
  different values.
  """
  changed = {}
  for name in names:
    if name not in MENU:
      lines = [f"  {known}: {sentence}" for known, sentence in ABLATIONS.items()]
      raise ValueError(f"no ablation {name!r}; expected one of\n" + "\n".join(lines))
    changes = MENU[name][1]
    for key in changes:
      if key in changed and changed[key] != changes[key]:
        raise ValueError(f"ablation {name!r} and another one set {key} to different values")
    before = config.to_dict()
    config.update_from_flattened_dict(changes)
    if config.to_dict() == before:
      raise ValueError(f"ablation {name!r} changes nothing: this config has {changes} without it")
    changed |= changes
  if config.train.start_from.startswith("runs/"):
    config.train.start_from = "-".join((config.train.start_from, *names))
  return config
