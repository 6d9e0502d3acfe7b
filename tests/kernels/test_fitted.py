"""Measured constants of the kernels' plans, one table per device."""

import dataclasses
import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from switchrail_kernels import device as devices
from switchrail_kernels.fitted import DEVICES, H200, Pace, nearest

CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU with the given capability."""

    def make(capability):
        monkeypatch.setattr(devices, "compute_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Test")
        return torch.device("cuda", 63)

    devices.fitted.cache_clear()
    yield make
    devices.fitted.cache_clear()


def of(*capabilities):
    return tuple(dataclasses.replace(H200, capability=capability) for capability in capabilities)


@pytest.mark.parametrize(
    ("asked", "found"),
    [((8, 0), (8, 0)), ((8, 9), (8, 6)), ((7, 5), (8, 0)), ((9, 0), (9, 0)), ((12, 1), (10, 0))],
)
def test_the_nearest_table(asked, found):
    assert nearest(asked, of((8, 0), (8, 6), (9, 0), (10, 0))).capability == found


def test_tables_are_sorted_and_say_where_they_are_from():
    capabilities = [fitted.capability for fitted in DEVICES]
    assert capabilities == sorted(set(capabilities))
    for fitted in DEVICES:
        assert all((fitted.device, fitted.date, fitted.versions, fitted.command))
        assert fitted.walks.keys() == {"delta", "lightning", "mamba2"}


def test_a_device_that_was_not_timed_says_so_once(gpu, caplog):
    device = gpu((8, 0))
    with caplog.at_level(logging.INFO, "switchrail_kernels"):
        assert devices.fitted(device) is devices.fitted(device) is H200
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == (
        "switchrail_kernels was not timed on NVIDIA Test (8.0): "
        "its plans use the times of an NVIDIA H200 (9.0)"
    )


def test_a_device_that_was_timed_says_nothing(gpu, caplog):
    with caplog.at_level(logging.INFO, "switchrail_kernels"):
        assert devices.fitted(gpu((9, 0))) is devices.fitted(CPU) is H200
    assert not caplog.records


@pytest.mark.parametrize(
    ("walk", "formula"),
    [
        ("delta", lambda load: max(0.61, min(1.15, 2 * load - 1.39), 0.586 * load)),
        ("lightning", lambda load: max(0.88, 0.66 * load)),
        ("mamba2", lambda load: 1.4 if load <= 1 else 1.55 if load <= 2 else 0.92 * math.ceil(load)),
    ],
)
def test_the_paces_of_an_h200(walk, formula):
    pace = H200.walks[walk].pace
    for load in (step / 64 for step in range(640)):
        assert pace.at(load) == pytest.approx(formula(load), rel=1e-4)


@given(
    st.dictionaries(st.integers(1, 40), st.integers(1, 40), min_size=1, max_size=6),
    st.floats(0, 50),
)
def test_a_pace_is_linear_between_its_points(points, programs):
    points = sorted(points.items())
    pace = Pace(tuple(points), each=3.0)
    assert all(pace.at(place) == time for place, time in points)
    if programs > points[-1][0]:
        assert pace.at(programs) == 3.0 * programs
        return
    low = max((point for point in points if point[0] <= programs), default=points[0])
    high = min(point for point in points if point[0] >= programs)
    assert min(low[1], high[1]) - 1e-9 <= pace.at(programs) <= max(low[1], high[1]) + 1e-9
    middle = (low[0] + high[0]) / 2
    if middle >= points[0][0]:
        assert pace.at(middle) == pytest.approx((low[1] + high[1]) / 2)


def test_steps_and_rounds():
    pace = Pace(((1.0, 1.0), (1.0, 3.0), (2.0, 3.0)), each=2.0, rounds=True)
    found = {programs: pace.at(programs) for programs in (0.0, 1.0, 1.01, 2.0, 2.01, 3.0)}
    assert found == {0.0: 1.0, 1.0: 1.0, 1.01: 3.0, 2.0: 3.0, 2.01: 6.0, 3.0: 6.0}
