"""The library: trained models, applied to a user's own images or points; see `scae_jax`."""
