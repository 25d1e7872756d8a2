"""One canonical spelling of a name, for counting attempts and for finding the person."""

import pytest
from django.contrib.auth.forms import UsernameField

from apps.quotas.services import attempts


@pytest.mark.slow
def test_every_character_that_the_form_reads_as_another_counts_as_that() -> None:
    field = UsernameField()
    for number in range(0x110000):
        typed = chr(number)
        if typed.isspace() or 0xD800 <= number < 0xE000:
            continue
        meant = str(field.to_python(typed))
        # Two spellings of the same text would be the same for all but these.
        if meant != typed:
            assert attempts.spelling(typed) == attempts.spelling(meant), hex(number)
