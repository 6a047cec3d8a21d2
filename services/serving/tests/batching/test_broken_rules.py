"""Where a rule that a version's graph holds is broken, the answer names input, row and value, as for bounds."""

import numpy as np

from services.serving.tests.support.queue_asker import request
from services.serving.tests.support.recording_model import RecordingModel, answers_of
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed
from testing.rows import each_row


def _escaped(text: str) -> str:
    """As TensorFlow shows texts."""
    shown = "".join(f"\\{byte:03o}" if byte > 126 else chr(byte) for byte in text.encode())
    return shown.replace('"', '\\"')


class RuledModel(RecordingModel):
    """As TensorFlow refuses what a trained graph does not allow: numbers above 28."""

    def __init__(self, rule: str, inner: tuple[int, ...] = (-1,)) -> None:
        super().__init__(inner)
        self._rule = rule

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        if (inputs["x"] > 28).any():
            raise RequestFailed(
                Code.INVALID_ARGUMENT, f"assertion failed: [{_escaped(self._rule)}]\n\t [[{{node Assert}}]]"
            )
        return super().run(signature, inputs, output_filter)


_RANGE = 'input "x": the value is not from 0 to 28'


@each_row(
    ("rule", "values", "sentence"),
    [
        (_RANGE, [[77.0]], 'input "x", row 0: the value 77.0 is not from 0 to 28'),
        (_RANGE, [[1.0], [2.0], [29.0], [4.0], [77.0]], 'input "x", row 2: the value 29.0 is not from 0 to 28'),
        (_RANGE, [[1.0, 2.0], [3.0, 77.0]], 'input "x", row 1: one of the values 3.0, 77.0 is not from 0 to 28'),
        (_RANGE, [[77.0] * 11], f'input "x", row 0: one of the values {"77.0, " * 10}… is not from 0 to 28'),
        (
            'input "größe": the value is not in the vocabulary',
            [[1.0], [77.0]],
            'input "größe", row 1: a value is not in the vocabulary',
        ),
        (
            'input "x": its weights are not one for each value of ids',
            [[77.0]],
            'input "x", row 0: its weights are not one for each value of ids',
        ),
        ("must not be negative", [[77.0]], "assertion failed: [must not be negative]\n\t [[{node Assert}]]"),
    ],
)
def test_the_answer_says_whose_value_breaks_the_rule_and_others_are_answered(
    rule: str, values: list[list[float]], sentence: str
) -> None:
    wrong, right = (request(name, {"x": np.array(rows, "<f4")}) for name, rows in ((b"a", values), (b"b", [[5.0]])))
    (refused, answered), _ = answers_of(RuledModel(rule), [wrong, right])
    assert (refused.error_code, refused.error_message) == (Code.INVALID_ARGUMENT, sentence)
    assert answered.error_code == 0


def test_the_row_is_found_among_many_without_a_call_of_more_rows_than_a_call_may_have() -> None:
    values = np.ones((40_000, 1), "<f4")
    values[31_234] = 77
    model = RuledModel(_RANGE)
    (refused,), _ = answers_of(model, [request(b"a", {"x": values})])
    assert refused.error_message == 'input "x", row 31234: the value 77.0 is not from 0 to 28'
    assert max(map(len, model.calls)) <= 16_384
