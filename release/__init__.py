"""How a release of TFGPUJob is made: `make release VERSION=x`."""
