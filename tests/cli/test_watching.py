"""The watch of `gpucloud run` over a claim that moves to another node."""

import pytest

from gpucloud_cli.watching import Claim, ClaimWatch


def claim(state: str, **facts: object) -> Claim:
    home = {"uid": "a", "state": "in_force"}
    return {"uid": "c", "state": state, "assignments": [home], "reasons": [], "moves_to": None, **facts}


@pytest.mark.parametrize(
    ("moves_by", "words"),
    [("carry", "its running programs are carried"), ("restart", "start them there with `gpucloud claim exec c")],
)
def test_it_says_how_the_claim_moves(capsys: pytest.CaptureFixture[str], moves_by: str, words: str) -> None:
    watch = ClaimWatch(None, claim("active"))  # type: ignore[arg-type]
    watch._tell_end(claim("suspending", moves_to="n2", moves_by=moves_by))
    said = capsys.readouterr().err
    assert "moves to node n2" in said
    assert words in said
    # There the claim is no longer this program's.
    watch._tell_end(claim("active", assignments=[{"uid": "b", "state": "in_force"}]))
    assert watch.cause == "it is on node n2 now"
