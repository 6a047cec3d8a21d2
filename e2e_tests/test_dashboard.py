"""The pages of a running platform in a real browser: what is clicked there, a predicting client sees."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.teaching import Pupil, await_more
from e2e_tests.waiting import until
from testing.browser import CHROMIUM, chromium

pytestmark = [
    pytest.mark.needs(CHROMIUM),
    pytest.mark.slow,
    pytest.mark.local_only,
    pytest.mark.timeout(600, method="signal"),
]


def confirm(page: Page, action: str, reason: str) -> None:
    page.get_by_label("Your name").fill("ada")
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name=action).click()
    expect(page.get_by_role("status").filter(has_text="Production has moved")).to_be_visible()


def await_answers(pupil: Pupil, version: int, expected: list[float]) -> None:
    pupil.await_served(version)
    until(lambda: pupil.probabilities() == _nearly(expected), f"predictions are those of version {version}")


def _nearly(answers: list[float]) -> object:
    """Whom an answer shares its batch with may move its last digit."""
    return pytest.approx(answers, abs=1e-6)


def test_production_goes_back_and_forward_by_clicks_and_predictions_go_with_it(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    pupil = make_pupil(platform.client(), tmp_path / "definition")
    answers = {}
    for version in (1, 2):
        pupil.learn_version(version)
        answers[version] = pupil.probabilities()
    assert answers[1] != _nearly(answers[2])
    with chromium() as browser, pupil.asking() as outcomes:
        page = browser.new_page()
        page.goto(f"{platform.addresses.registry}/models/{pupil.model}")
        page.get_by_role("link", name="Roll back").click()
        confirm(page, "Roll back", "bad fares")
        await_answers(pupil, 1, answers[1])
        expect(page.get_by_role("row").filter(has_text="bad fares").first).to_contain_text("ada")
        page.get_by_role("link", name="Promote version 2").click()
        confirm(page, "Promote", "good again")
        await_answers(pupil, 2, answers[2])
        await_more(outcomes)
    assert set(outcomes) == {"ok"}
