"""A job without a cluster: the operator's own core and worker, on processes of this machine instead of pods.

    verbs/run.py → session.py     signals, the end, exit codes
                     ├ plan.py          what stands in the way, what is ignored here
                     ├ folder.py        the run's folder: lock, state, logs, checkpoints
                     ├ cluster.py       the API server: job, service, pods in memory
                     │   ├ translate.py   pod → command and environment
                     │   ├ ports.py       host:port of the cluster → a port of this machine
                     │   └ process.py     one pod's process; child.py makes it die with us
                     └ screen.py        what a person sees of all that

Restart rules, budgets and conditions are not here: `core.reconcile` and `shell.worker` are the operator's.
"""
