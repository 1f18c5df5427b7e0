"""`python -m tfgpujob_trainer.advise`: measures a job on this machine, and recommends settings."""
