"""PCM through cepstral coefficients (MFCC) and dilated convolutions over time (WaveNet's: van den Oord et al. 2016)."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from common.schema import Schema


class Mfcc(keras.layers.Layer):
    """The first coefficients of each moment's spectrum, by HTK's formula: [n, times, bins] to [n, times, count]."""

    def __init__(self, count: int) -> None:
        super().__init__(name="mfcc", trainable=False)
        self._count = count

    def call(self, log_mel: tf.Tensor) -> tf.Tensor:
        return tf.signal.mfccs_from_log_mel_spectrograms(log_mel)[..., : self._count]

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self._count)


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """pcm, 1,000 samples, to the logits of the signs, float32 [n, signs]."""
    feature = schema.feature("pcm")
    pcm = keras.Input(schema.seen_shape(feature), dtype=feature.seen_dtype, name="pcm")
    samples = keras.layers.Rescaling(1 / 32768)(pcm)
    mel = keras.layers.MelSpectrogram(
        fft_length=256, sequence_stride=32, sequence_length=256, sampling_rate=4000, num_mel_bins=24, min_freq=200,
        max_freq=1800, power_to_db=True,
    )(samples)  # fmt: skip
    cepstrum = Mfcc(parameters["coefficients"])(keras.layers.Permute((2, 1))(mel))
    time = keras.layers.LayerNormalization((1, 2), center=False, scale=False)(cepstrum)
    for dilation in parameters["dilations"]:
        layer = keras.layers.Conv1D(
            parameters["filters"], 3, dilation_rate=dilation, padding="causal", activation="relu"
        )
        time = layer(time)
    pooled = keras.layers.Concatenate()([keras.layers.GlobalAveragePooling1D()(time), time[:, -1]])
    return keras.Model(pcm, keras.layers.Dense(len(schema.feature("sign").vocabulary or ()))(pooled))
