"""Questions to trained models beyond their reports, one command each; results/ has the answers."""
