"""Where a figure comes from: folder, releases, hardware, date."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
from collections.abc import Mapping
from typing import Any

import jax

# Settings of JAX on which random numbers and types depend, each a variable of the environment.
_SETTINGS = ("jax_default_prng_impl", "jax_threefry_partitionable")
_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "scipy", "scikit-learn")


def measured_with() -> dict[str, Any]:
  """Releases, settings, hardware and date (UTC), as entries of `metrics.json`.

  Of an accelerator, `platform_version` says which compiler and driver library jax runs on.
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
  """Settings of this process on which results depend, by the variables that set them."""
  return {name.upper(): jax.config.values[name] for name in _SETTINGS}


def recorded_folder(folder: pathlib.Path) -> str:
  """A folder as records name it: from the current folder if it lies below it, else as given."""
  here = pathlib.Path.cwd()
  return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def hardware(measured: Mapping[str, Any]) -> str:
  """A sentence on the machine that `measured_with` found."""
  found = measured["hardware"]
  return (
    f"Hardware: {found['cpu_count']} x {found['cpu_model']}, jax on {found['device_count']}"
    f" {found['device_kind']}."
  )


def versions(measured: Mapping[str, Any]) -> str:
  """A sentence on the releases that `measured_with` found."""
  found = (f"{name} {version}" for name, version in measured["versions"].items())
  return f"Versions: {', '.join(found)}."


def cpu_model() -> str:
  """What the processor calls itself, or its architecture where the system does not tell."""
  cpuinfo = pathlib.Path("/proc/cpuinfo")
  text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
  found = re.search(r"^model name\s*: *(\S.*?)\s*$", text, re.MULTILINE)
  return found[1] if found else platform.processor() or platform.machine()
