"""A small BERT: trained on masked tokens, then frozen and fine-tuned for another task with LoRA and a new head."""

import keras
import numpy as np

TOKENS, LENGTH, WIDTH, MASK = 20, 8, 8, 1


class Embed(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tokens, self.places = keras.layers.Embedding(TOKENS, WIDTH), keras.layers.Embedding(LENGTH, WIDTH)

    def call(self, tokens):
        return self.tokens(tokens) + self.places(keras.ops.arange(LENGTH))

    def compute_mask(self, tokens, mask=None):
        return keras.ops.not_equal(tokens, 0)


class Block(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, WIDTH // 2)
        self.inner, self.outer = keras.layers.Dense(2 * WIDTH, "gelu"), keras.layers.Dense(WIDTH)
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.supports_masking = True

    def call(self, x):
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.outer(self.inner(x)))


def backbone_of():
    tokens = keras.Input((LENGTH,), dtype="int32")
    return keras.Model(tokens, Block(name="block")(Embed()(tokens)), name="backbone")


keras.utils.set_random_seed(13)
rng = np.random.default_rng(13)
sentences = rng.integers(2, TOKENS, size=(140, LENGTH))
sentences[:, 5:] *= rng.integers(0, 2, size=(140, 1))  # some are shorter, and padded with zeros
hidden = (rng.uniform(size=sentences.shape) < 0.2) & (sentences > 0)

backbone = backbone_of()
pretraining = keras.Sequential([backbone, keras.layers.Dense(TOKENS)])
pretraining.compile(keras.optimizers.AdamW(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
pretraining.fit(
    np.where(hidden, MASK, sentences), sentences, sample_weight=hidden.astype("float32"), batch_size=28, epochs=2
)

for layer in backbone.layers:
    layer.trainable = layer.name == "block"
block = backbone.get_layer("block")
for layer in (block.attention, *block.norms):
    layer.trainable = False
for layer in (block.inner, block.outer):
    layer.enable_lora(2)
model = keras.Sequential([backbone, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
model.compile(
    keras.optimizers.AdamW(0.01), keras.losses.BinaryCrossentropy(from_logits=True), metrics=[keras.metrics.AUC()]
)
model.summary()
about = (sentences[:, 0] > sentences[:, 1]).astype("float32")
history = model.fit(sentences, about, batch_size=28, epochs=3, validation_split=0.2)
evaluated = model.evaluate(sentences, about)
predicted = model.predict(sentences[:6])
