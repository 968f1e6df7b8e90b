"""Where a result comes from: folder, releases, hardware, date."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
from collections.abc import Mapping
from typing import Any

import jax

# Settings of JAX on which random numbers and types depend; environment variables set them.
_SETTINGS = ("jax_default_prng_impl", "jax_threefry_partitionable")
_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "scipy", "scikit-learn")


def measured_with() -> dict[str, Any]:
  """Releases, settings, hardware and date (UTC), as entries of `metrics.json`.

  For an accelerator, `platform_version` has the compiler and driver library that jax uses.
  """
  device = jax.devices()[0]
  driver = {"platform_version": " ".join(device.client.platform_version.split())}
  return {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "versions": {"python": platform.python_version()}
    | {name: importlib.metadata.version(name) for name in _PACKAGES},
    "settings": jax_settings(),
    "hardware": {
      "platform": device.platform,
      "device_kind": device.device_kind,
      "device_count": jax.device_count(),
      **(driver if device.platform != "cpu" else {}),
      "cpu_model": cpu_model(),
      "cpu_count": os.cpu_count(),
    },
  }


def jax_settings() -> dict[str, Any]:
  """Settings of this process on which results depend, by their environment variables."""
  return {name.upper(): jax.config.values[name] for name in _SETTINGS}


def recorded_folder(folder: pathlib.Path) -> str:
  """A folder as records name it: relative to the current folder if below it, else as given."""
  current = pathlib.Path.cwd()
  return str(folder.relative_to(current) if folder.is_relative_to(current) else folder)


def hardware(measured: Mapping[str, Any]) -> str:
  """A sentence on the machine that `measured_with` found."""
  machine = measured["hardware"]
  return (
    f"Hardware: {machine['cpu_count']} x {machine['cpu_model']}, jax on {machine['device_count']}"
    f" {machine['device_kind']}."
  )


def versions(measured: Mapping[str, Any]) -> str:
  """A sentence on the releases that `measured_with` found."""
  releases = (f"{name} {version}" for name, version in measured["versions"].items())
  return f"Versions: {', '.join(releases)}."


def cpu_model() -> str:
  """The model name of the processor, or its architecture if the system does not tell it."""
  cpuinfo = pathlib.Path("/proc/cpuinfo")
  text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
  model = re.search(r"^model name\s*: *(\S.*?)\s*$", text, re.MULTILINE)
  return model[1] if model else platform.processor() or platform.machine()
