"""The style sheet: the part of the vendored one that pages use."""

import pytest

from deploy import styles

WORDS = {"btn", "card", "show"}


PICTURE = """.btn{background:url("data:image/svg+xml,<a b='}.modal{'/>")}"""


@pytest.mark.parametrize(
    ("sheet", "left"),
    [
        (".btn{color:red}.modal{color:red}", [".btn{color:red}"]),
        (".modal,.btn:hover,a{color:red}", [".btn:hover,a{color:red}"]),
        (".card .modal{x:y}.card.show>b{x:y}", [".card.show>b{x:y}"]),
        # Uncertain rules stay.
        (".btn:not(.modal){x:y}:is(.modal,.card){x:y}", [".btn:not(.modal){x:y}", ":is(.modal,.card){x:y}"]),
        ("@media print{.modal{x:y}.btn{x:y}}@media print{.modal{x:y}}", ["@media print{.btn{x:y}}"]),
        (
            "/*! whose */@keyframes a{to{x:y}}/* n */:root{--a:b}",
            ["/*! whose */", "@keyframes a{to{x:y}}", ":root{--a:b}"],
        ),
        (PICTURE, [PICTURE]),
    ],
)
def test_a_rule_goes_where_it_is_for_a_class_that_nobody_names(sheet: str, left: list[str]) -> None:
    assert styles.filter_rules(sheet, WORDS) == "".join(f"{rule}\n" for rule in left)


def test_classes_are_found_where_templates_scripts_and_forms_name_them() -> None:
    words = styles.words()
    # In an attribute with tags in it, in a form's widget, in a script.
    assert {"btn-primary", "visually-hidden", "form-select", "legend-item"} <= words
    assert "carousel" not in words
    assert ".btn-primary{" in styles.USED.read_text()
