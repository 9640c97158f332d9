"""Laws of sessions: quantiles worked out by hand, fits that find what was drawn, draws that keep to caps."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaincinv

from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.fit import fit_sessions
from tlt.traces.sessions.generate import generate_sessions
from tlt.traces.sessions.laws import (
    AnyLaw,
    Constant,
    Exponential,
    Gamma,
    Geometric,
    Lognormal,
    Quantity,
    Recorded,
    Weibull,
    parse_law,
)
from tlt.traces.sessions.session_laws import SessionLaws, load_laws
from tlt.traces.sessions.turns import ENDS, LENGTH, Session, SessionLimits, Turn
from tltsched.errors import InputError

ORIGIN = Origin(source="written here", kind="generated")
LAWS = SessionLaws(
    origin=ORIGIN,
    turns=Quantity(law=Geometric(mean=6), correlation=0.5),
    prompt_tokens=Quantity(law=Lognormal(median=800, sigma=0.3)),
    last_response_tokens=Quantity(law=Lognormal(median=500, sigma=0.8)),
    response_tokens=Quantity(law=Lognormal(median=200, sigma=1.0), correlation=0.3),
    input_tokens=Quantity(law=Gamma(mean=600, shape=0.7)),
    wait_s=Quantity(law=Weibull(scale=2, shape=0.6), zero_share=0.1),
)


@pytest.mark.parametrize(
    ("law", "share", "value"),
    [
        (Constant(value=3), 0.9, 3.0),
        (Exponential(mean=2), 0.5, 2 * np.log(2)),
        (Geometric(mean=1), 0.99, 1.0),
        (Geometric(mean=2), 0.5, 1.0),  # P(N <= 1) = 1/2
        (Geometric(mean=2), 0.51, 2.0),
        (Lognormal(median=7, sigma=1), 0.5, 7.0),
        (Gamma(mean=4, shape=1), 0.5, 4 * np.log(2)),  # exponential
        (Gamma(mean=4, shape=2), 0.5, 2 * gammaincinv(2, 0.5)),
        (Weibull(scale=3, shape=1), 0.5, 3 * np.log(2)),  # exponential
        (Recorded(quantiles=(0.0, 10.0, 30.0)), 0.75, 20.0),
    ],
)
def test_quantiles(law: AnyLaw, share: float, value: float) -> None:
    assert law.quantile(np.array([share])) == pytest.approx([value])


def test_zeros_come_first() -> None:
    quantity = Quantity(law=Constant(value=5.0), zero_share=0.25)
    assert quantity.quantile(np.array([0.0, 0.24, 0.25, 0.9])).tolist() == [0.0, 0.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("2.5", Constant(value=2.5)),
        ("lognormal(median=1.5, sigma=2)", Lognormal(median=1.5, sigma=2.0)),
        ("exponential(mean=3)", Exponential(mean=3.0)),
    ],
)
def test_a_law_is_read_as_it_is_written(text: str, law: AnyLaw) -> None:
    assert parse_law(text, "--wait-s") == law
    assert parse_law(law.text(), "--wait-s") == law


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("log-normal(median=1)", "did you mean 'lognormal'?"),
        ("lognormal(mean=1)", "got 'mean' for parameter of lognormal"),
        ("lognormal(sigma=-1)", "got -1.0 for sigma of lognormal"),
        ("nan", "got nan for value of constant"),
        ("-1", "got -1.0 for value of constant"),
        ("lognormal(median=1", "close the bracket"),
    ],
)
def test_a_wrong_law_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_law(text, "--wait-s")
    assert told in str(refused.value)


def test_a_fit_finds_the_laws_that_were_drawn_from() -> None:
    found = fit_sessions(generate_sessions(LAWS, 4, 64, 4, seed=1))
    assert found.response_tokens is not None
    assert found.wait_s is not None
    response = found.response_tokens.law
    assert isinstance(response, Lognormal)
    assert response.median == pytest.approx(200, rel=0.05)
    assert response.sigma == pytest.approx(1.0, rel=0.05)
    assert found.response_tokens.correlation == pytest.approx(0.3, abs=0.06)
    assert isinstance(found.wait_s.law, Weibull)
    assert found.wait_s.law.shape == pytest.approx(0.6, rel=0.05)
    assert found.wait_s.zero_share == pytest.approx(0.1, abs=0.02)
    assert found.turns.correlation == pytest.approx(0.5, abs=0.1)
    assert found.waits_known == found.waits


def test_waits_that_nobody_recorded_have_no_law_and_are_drawn_as_not_known() -> None:
    turns = (
        Turn(input_tokens=5, response_tokens=3, wait_s=float("nan")),
        Turn(input_tokens=5, response_tokens=4),
    )
    recorded = from_structs([Session(sample=index, turns=turns) for index in range(9)], ORIGIN)
    laws = fit_sessions(recorded)
    assert (laws.wait_s, laws.waits, laws.waits_known) == (None, 9, 0)
    drawn = generate_sessions(laws, 1, 3, 1)
    assert np.isnan(drawn.wait_s[~drawn.last]).all()
    assert "Waits are not known" in drawn.origin.note


def test_too_few_sessions_tell_no_law() -> None:
    with pytest.raises(InputError, match="got 1 for sessions to fit"):
        fit_sessions(from_structs([Session(turns=(Turn(input_tokens=1, response_tokens=1),))], ORIGIN))


@settings(max_examples=25, deadline=None)
@given(
    turn_cap=st.none() | st.integers(1, 400),
    context_cap=st.none() | st.integers(1, 5_000),
    decoded_cap=st.none() | st.integers(1, 2_000),
    most_turns=st.none() | st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_draws_keep_to_every_cap(
    turn_cap: int | None, context_cap: int | None, decoded_cap: int | None, most_turns: int | None, seed: int
) -> None:
    limits = SessionLimits(max_turn_tokens=turn_cap, max_context_tokens=context_cap, max_turns=most_turns)
    origin = msgspec.structs.replace(ORIGIN, max_response_tokens=decoded_cap)
    laws = msgspec.structs.replace(LAWS, limits=limits, origin=origin)
    sessions = generate_sessions(laws, 2, 3, 2, seed)  # checked against the caps by its constructor
    assert len(sessions) == 12
    assert not np.isnan(sessions.wait_s).any()
    assert (sessions.wait_s[sessions.last] == 0).all()
    full = sessions.context_tokens[sessions.last] == (context_cap or -1)
    assert (sessions.end[sessions.last][full] == LENGTH).all()


def test_more_steps_change_no_draw_and_groups_share_their_prompt() -> None:
    short, long = (generate_sessions(LAWS, steps, 3, 2, seed=7) for steps in (1, 2))
    assert long.response_tokens[: len(short.response_tokens)].tolist() == short.response_tokens.tolist()
    prompts = short.input_tokens[short.first].reshape(3, 2)
    assert (prompts[:, 0] == prompts[:, 1]).all()
    assert set(np.unique(short.end)) <= {ENDS.index("tool"), ENDS.index("stop")}


def test_laws_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "laws.json"
    path.write_bytes(msgspec.json.encode(LAWS))
    assert load_laws(path) == LAWS
    path.write_text("{}")
    with pytest.raises(InputError):
        load_laws(path)
