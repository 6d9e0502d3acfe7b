"""The backend that a module of tests is about."""

import pytest


@pytest.fixture(scope="module")
def backend(request):
    return request.module.BACKEND()
