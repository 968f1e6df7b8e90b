"""The interactive page: HTML, JavaScript, and the functions that write it for a model."""
