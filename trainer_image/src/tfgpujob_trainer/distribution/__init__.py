"""keras.distribution on Keras' TensorFlow backend, by DTensor: models that are divided over the devices of a mesh."""
