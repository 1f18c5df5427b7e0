"""`make endurance`: nothing that a process holds may grow with the steps that it does.

sampling     what processes and folders hold, read from outside
bounds       whether a series of samples is flat, and why one may grow
scenarios    what is run: strategies and sources of data, as data
run          starts a scenario's processes, samples them, judges them
__main__     shares the time out, and prints one line of JSON
"""
