import pytest

from services.serving.replica.download_rate import DownloadRate


@pytest.mark.parametrize(
    ("most", "is_serving", "waiting", "expected"),
    [
        (100e6, True, 0.05, 100e6), (100e6, True, 0.2, 60e6), (100e6, True, 0.3, 20e6), (100e6, True, 0.9, 20e6),
        (20e6, True, 0.9, 20e6), (100e6, False, 0.9, 0.0), (0, True, 0.9, 0.0),
    ],
)  # fmt: skip
def test_a_download_gives_way_where_threads_wait_for_cores_and_versions_answer(
    most: float, is_serving: bool, waiting: float, expected: float
) -> None:
    rate = DownloadRate(int(most), is_serving=lambda: is_serving, share=lambda: waiting)
    assert rate() == pytest.approx(expected)
