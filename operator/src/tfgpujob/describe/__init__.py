"""What a job is doing, why it waits, what went wrong and what to do next, as one page of text.

Pure: a function of the job, its pods, its events and the nodes, as the API server returns them.
"""

from tfgpujob.describe.page import describe
from tfgpujob.describe.verdict import Verdict, find_verdict

__all__ = ["Verdict", "describe", "find_verdict"]
