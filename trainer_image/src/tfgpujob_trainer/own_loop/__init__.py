"""Functions for training loops written by hand that run as a job: `import tfgpujob_trainer as tfgpu`."""
