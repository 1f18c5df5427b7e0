"""Talking to an API server: connection, errors, paths, list-watch. What the operator and the client share.

interface.py    what the operator asks of an API server, as protocols; in a cluster it is
 └ cluster.py      that over HTTP, under the tests one in memory, in a local run one of processes
list_watch.py   list, watch from there, resume, list again when the version has expired
paths.py        where objects are in the API
connection.py   requests and streams over one login
login.py        finds the cluster and the credentials; the only file that imports the Kubernetes client
errors.py       what may go wrong
"""
