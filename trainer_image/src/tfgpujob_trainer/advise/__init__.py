"""`python -m tfgpujob_trainer.advise`: what a job does on this machine is measured, and what suits it is said."""
