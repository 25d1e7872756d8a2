"""A wrong choice in a body of the API: the error lists the right ones."""

import pytest

from apps.quotas.api.limits import MemberLimitSerializer
from apps.quotas.models import Resource


@pytest.mark.parametrize("wrong", ["core", 7, ["core_percent"]])
def test_a_wrong_choice_is_answered_with_the_right_ones(wrong: object) -> None:
    serializer = MemberLimitSerializer(data={"resource": wrong})

    assert not serializer.is_valid()
    assert serializer.errors["resource"] == [f"Must be one of: {', '.join(Resource.values)}."]
