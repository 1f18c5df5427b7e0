"""The verbs of `tfgpu`, one a file. Each file has one `click` command called `command`, listed in `main.VERBS`."""
