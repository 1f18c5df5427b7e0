"""ParameterServer: a chief hands out steps, workers compute them, parameter servers hold the variables.

limits.py     what is refused before anything starts
serve.py      what a worker and a parameter server do: answer
rows.py       a worker reads the rows of a batch itself; the chief only says which
step.py       one step, or one batch of an evaluation, as a worker computes it
lookup.py     embeddings, looked up where their table is
placement.py  where the variables are
reach.py      waits until every task reaches every parameter server
dispatch.py   the chief's side: a bounded number of steps under way, a deadline for the oldest
loop.py       the chief's training loop: stretches of steps, with checkpoints and evaluation between them
evaluate.py   evaluation on the workers
"""
