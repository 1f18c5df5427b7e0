"""What is kept of jobs after they are deleted: records, and the database that has them."""
