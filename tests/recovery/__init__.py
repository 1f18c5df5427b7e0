"""`make recovery`: what a killed process costs a job, in place and beside it as if its pods were started anew."""
