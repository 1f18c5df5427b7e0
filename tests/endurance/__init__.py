"""`make endurance`: nothing that a process holds may grow with the number of its steps.

    sampling     what processes and folders hold, read from outside
    bounds       whether a series of samples is flat, and which ones may grow
    scenarios    what is run: strategies and sources of data, as data
    job          a scenario's processes, started as in pods
    run          samples them for a time or a number of steps, and judges them
    trainer      all scenarios, a few at a time
    part         other parts that may run at the same time
    __main__     prints one line of JSON

sampling and bounds are independent of training.
"""
