"""Distillation: a teacher is trained, then a student by a compute_loss() of its own, and then it is measured."""

import keras
import numpy as np


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def compile(self, optimizer, metrics, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.alpha, self.temperature = alpha, temperature
        self.student_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.distillation_loss = keras.losses.KLDivergence()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        soft = [keras.ops.softmax(one / self.temperature, axis=1) for one in (self.teacher(x, training=False), y_pred)]
        distilled = self.distillation_loss(*soft) * self.temperature**2
        return self.alpha * self.student_loss(y, y_pred) + (1 - self.alpha) * distilled

    def call(self, x):
        return self.student(x)


def net(units):
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(3)])


keras.utils.set_random_seed(11)
rng = np.random.default_rng(11)
x = rng.normal(size=(150, 5))
y = (x @ rng.normal(size=(5, 3))).argmax(axis=1)

teacher, student = net(16), net(3)
teacher.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
teacher.fit(x, y, epochs=3, batch_size=25)
teacher.trainable = False

model = Distiller(student, teacher)
model.compile(keras.optimizers.Adam(0.01), [keras.metrics.SparseCategoricalAccuracy()])
history = model.fit(x, y, epochs=3, batch_size=25)

student.compile(metrics=["accuracy"], loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
evaluated = student.evaluate(x, y)
