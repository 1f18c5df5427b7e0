"""What the operator asks of a program, for training loops written by hand: `import tfgpujob_trainer as tfgpu`."""
