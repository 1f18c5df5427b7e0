"""What the operator gives to a pod, fed to the trainer that runs in it."""
