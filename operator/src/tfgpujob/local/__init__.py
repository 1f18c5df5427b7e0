"""A job without a cluster: the operator's own core and worker, on processes of this machine instead of pods.

    cli/verbs/run.py → session.py     signals, the end, exit codes; cli/screen.py shows it to a person
                         ├ preflight.py     what stands in the way, what is ignored here
                         ├ folder.py        the run's folder: lock, state, logs, checkpoints
                         └ cluster.py       the API server: job, service, pods in memory
                             ├ translate.py   pod → command and environment
                             ├ ports.py       host:port of the cluster → a port of this machine
                             └ process.py     one pod's process; child.py makes it die with us

    job_file.py, offline.py           a file of objects, and what the operator would make of its job

Restart rules, budgets and conditions are not here: `core.reconcile` and `shell.worker` are the operator's.
"""
