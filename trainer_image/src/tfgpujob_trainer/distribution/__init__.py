"""keras.distribution on Keras' TensorFlow backend, by DTensor: models that are sharded over the devices of a mesh."""
