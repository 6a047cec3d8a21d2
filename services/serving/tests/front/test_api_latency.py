"""Latency by API and entry point, in TensorFlow Serving's name and buckets."""

from services.serving.front.request_counts import CLASSIFY, PREDICT, ApiLatency

_NAME = ":tensorflow:serving:request_latency"


def test_successes_count_in_buckets_of_1_8_times_the_one_before() -> None:
    latency = ApiLatency()
    for seconds in (0.000_009, 0.000_010, 0.000_011, 0.001, 3_000.0):
        latency.add("m", PREDICT, "grpc", seconds)
    lines = list(latency.lines())
    labels = 'model_name="m",API="Predict",entrypoint="GRPC"'
    assert lines[0] == f"# TYPE {_NAME} histogram\n"
    buckets = [line for line in lines if "_bucket" in line]
    assert len(buckets) == 34
    assert buckets[:3] == [
        f'{_NAME}_bucket{{{labels},le="10"}} 2\n',
        f'{_NAME}_bucket{{{labels},le="18"}} 3\n',
        f'{_NAME}_bucket{{{labels},le="32.4"}} 3\n',
    ]
    assert buckets[-2].endswith(" 4\n")
    assert buckets[-1] == f'{_NAME}_bucket{{{labels},le="+Inf"}} 5\n'
    assert f"{_NAME}_sum{{{labels}}} 3e+09\n" in lines
    assert lines[-1] == f"{_NAME}_count{{{labels}}} 5\n"


def test_rest_has_its_apis_in_small_letters_and_labels_are_escaped() -> None:
    latency = ApiLatency()
    latency.add('a"b', CLASSIFY, "http", 0.001)
    assert f'{_NAME}_count{{model_name="a\\"b",API="classify",entrypoint="REST"}} 1\n' in list(latency.lines())
