"""Compiled programs kept on disk, so that a second start need not compile again."""

import os

import jax

from scae_jax.data.cache import cache_folder

OFF = "off"


def keep_compiled(folder: str) -> None:
  """Makes this process read and write JAX's persistent compilation cache; call it once, early.

  No folder means `$JAX_COMPILATION_CACHE_DIR` or else `compiled` in the cache folder of the data
  (`$SCAE_JAX_CACHE` or `~/.cache/scae_jax`); "off" means no cache.
  """
  if folder == OFF:
    jax.config.update("jax_enable_compilation_cache", False)
    return
  default = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache_folder("") / "compiled")
  jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder) or default)
