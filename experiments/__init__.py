"""Questions to trained models beyond their reports, one command each; results/ has the answers."""

import jax

jax.config.update("jax_enable_x64", False)  # as training and evaluation compute
