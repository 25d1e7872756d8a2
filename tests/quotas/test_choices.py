"""A wrong choice in a body of the API: the error lists the right ones."""

import pytest

from apps.quotas.api.limits import LimitRangeSerializer
from apps.quotas.models.limits import ClaimField


@pytest.mark.parametrize("wrong", ["core", 7, ["core_request"]])
def test_a_wrong_choice_is_answered_with_the_right_ones(wrong: object) -> None:
    serializer = LimitRangeSerializer(data={"field": wrong})

    assert not serializer.is_valid()
    assert serializer.errors["field"] == [f"Must be one of: {', '.join(ClaimField.values)}."]
