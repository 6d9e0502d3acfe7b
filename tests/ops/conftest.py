"""The fixture `backend`, an instance of the test file's `BACKEND`."""

import pytest


@pytest.fixture(scope="module")
def backend(request):
    return request.module.BACKEND()
