"""Text as it is: TextVectorization, adapted and put into the model, and validation_split."""

import keras
import numpy as np

keras.utils.set_random_seed(6)
rng = np.random.default_rng(6)
subjects = ("the film", "this story", "one scene", "the music")
praise = ("was a joy", "is wonderful", "made me laugh", "shines")
blame = ("was a bore", "is dreadful", "made me yawn", "drags on")
labels = rng.integers(0, 2, size=150)
said = [f"{rng.choice(subjects).title()} {rng.choice(praise if good else blame)}!" for good in labels]
texts = np.array(said, dtype=object)  # as Keras wants them

vectorize = keras.layers.TextVectorization(max_tokens=30, output_sequence_length=6)
vectorize.adapt(texts)

model = keras.Sequential(
    [
        keras.Input((1,), dtype="string"),
        vectorize,
        keras.layers.Embedding(30, 8, mask_zero=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(texts, labels, batch_size=20, epochs=3, validation_split=0.2)
evaluated = model.evaluate(texts, labels)
predicted = model.predict(np.array(["The music shines!", "One scene drags on!"], dtype=object))
