"""Experiments: one file each, whose `get_config` returns the whole configuration."""

from ml_collections import ConfigDict


def preset(config: ConfigDict, presets: dict[str, dict[str, object]], name: str) -> ConfigDict:
  """The config with the changes of a preset; "" is the first, ValueError of an unknown one."""
  name = name or next(iter(presets))
  if name not in presets:
    raise ValueError(f"no preset {name!r}; expected one of {', '.join(presets)}")
  config.update_from_flattened_dict(presets[name])
  return config
