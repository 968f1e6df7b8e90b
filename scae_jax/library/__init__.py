"""The library: trained models on images or points of one's own; see `scae_jax`."""
