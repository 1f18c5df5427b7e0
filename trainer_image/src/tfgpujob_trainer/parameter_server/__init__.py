"""ParameterServer: a chief schedules steps, workers compute them, parameter servers hold the variables.

trainer.py             the chief as a Trainer: policy, steps, evaluator, loop
loop.py                its training loop: segments of steps, with checkpoints and evaluation between them
dispatch.py            a bounded number of steps scheduled at a time, a deadline for the oldest
step.py                one step, or one batch of an evaluation, as a worker computes it
rows.py                a worker reads the rows of a batch itself; the chief only says which
evaluate.py            evaluation on the workers
serve.py               what a worker and a parameter server run
embedding_lookup.py    embeddings, gathered on the server that holds their table
variable_placement.py  which server holds which variables
memory_limits.py       how much memory each server may use
wait_for_servers.py    waits until every task can connect to every server
"""
