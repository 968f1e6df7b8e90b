"""Configs: one file for each experiment; its `get_config` returns the whole config."""

from ml_collections import ConfigDict


def preset(config: ConfigDict, presets: dict[str, dict[str, object]], name: str) -> ConfigDict:
  """Applies a preset to the config, in place; "" is the first. ValueError if it is unknown."""
  name = name or next(iter(presets))
  if name not in presets:
    raise ValueError(f"no preset {name!r}; expected one of {', '.join(presets)}")
  config.update_from_flattened_dict(presets[name])
  return config
