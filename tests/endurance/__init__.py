"""`make endurance`: nothing that a process holds may grow with the steps that it does.

    sampling     what processes and folders hold, read from outside
    bounds       whether a series of samples is flat, and why one may grow
    scenarios    what is run: strategies and sources of data, as data
    job          a scenario's processes, started as pods would be
    run          samples them for so long or so many steps, and judges them
    trainer      all scenarios, a few at a time
    part         what else may run beside it
    __main__     prints one line of JSON

sampling and bounds know nothing of training.
"""
