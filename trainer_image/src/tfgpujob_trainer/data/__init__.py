"""Which rows make up a global batch, and reading them. sources/: what `data(split)` may return."""
