"""The interactive page: HTML, JavaScript, and what writes them from a model."""
